"""Questions and their answers. Placement's leader answers from its book; metrics answers from what it has heard."""

from __future__ import annotations

import msgspec

from shared.contracts.base import Message
from shared.contracts.commands import NodeGrant
from shared.contracts.explain import PodExplanation


class WhyQuery(Message, frozen=True):
    namespace: str
    name: str
    max_nodes: int = 20


class WhatIfQuery(Message, frozen=True):
    """A pod manifest that need not exist: where would it go now, and what keeps it out elsewhere?"""

    pod: msgspec.Raw
    max_nodes: int = 20


class ExplainAnswer(Message, frozen=True):
    explanation: PodExplanation | None = None
    error: str = ""
    """Not empty: why there is no answer, and what to do."""


class GrantQuery(Message, frozen=True):
    """Asked by an agent that meets a slot whose grant it has not heard of."""

    uid: str
    node: str


class GrantAnswer(Message, frozen=True):
    found: NodeGrant | None = None
    error: str = ""


class InspectQuery(Message, frozen=True):
    node: str = ""
    """Empty: all."""


class InspectPod(Message, frozen=True):
    namespace: str
    name: str
    memory_mib: int
    compute_milli: int
    state: str
    """holding, bound, leaving"""
    containers: tuple[str, ...] = ()


class InspectGpu(Message, frozen=True):
    uuid: str
    index: int
    model: str
    state: str
    memory_mib: int
    allocated_memory_mib: int
    allocated_compute_milli: int
    containers: int = 0
    pods: tuple[InspectPod, ...] = ()


class InspectNode(Message, frozen=True):
    node: str
    address: str = ""
    ready: bool = True
    synced: bool = True
    """Whether the node's agent has answered this term's sync; without it nothing new goes there."""
    gpus: tuple[InspectGpu, ...] = ()


class InspectAnswer(Message, frozen=True):
    nodes: tuple[InspectNode, ...] = ()
    error: str = ""


class StatusQuery(Message, frozen=True):
    waiting: int = 0
    """How many of the oldest waiting pods to explain. Each costs the leader a look at every node: ask for few."""


class StatusAnswer(Message, frozen=True):
    """Placement in figures. `double_bookings` counts GPUs whose booked shares exceed them, seen by the book's audit."""

    holder: str = ""
    leader: bool = False
    term: int = 0
    nodes: int = 0
    gpus: int = 0
    gpu_milli_total: int = 0
    gpu_milli_allocated: int = 0
    gpu_memory_mib_total: int = 0
    gpu_memory_mib_allocated: int = 0
    pods_bound: int = 0
    pods_holding: int = 0
    pods_waiting: int = 0
    pods_gated: int = 0
    pods_leaving: int = 0
    decisions: int = 0
    rejections: int = 0
    decide_us_p50: float = 0.0
    decide_us_p99: float = 0.0
    fragmentation_milli: int = 0
    """GPU milli that is free and that no waiting or usual request could take."""
    double_bookings: int = 0
    waiting: tuple[PodExplanation, ...] = ()
    """The oldest waiting pods that were asked for, at most ten, without their nodes."""
    synced_nodes: int = 0


class UsageQuery(Message, frozen=True):
    by: str = "namespace"
    """namespace, pod or model"""


class UsageRow(Message, frozen=True):
    key: str
    gpu_seconds: float
    """Slice-seconds: the larger of the memory and compute share, times seconds held."""
    memory_mib_seconds: float
    slices: int
    live: int = 0


class UsageAnswer(Message, frozen=True):
    rows: tuple[UsageRow, ...] = ()
    error: str = ""


class TraceQuery(Message, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Span(Message, frozen=True):
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    start_ns: int
    end_ns: int
    attributes: dict[str, str | int | float | bool] = {}
    events: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    error: str = ""


class SpanBatch(Message, frozen=True):
    """Finished spans, from each service to metrics, which keeps the newest traces for `kerf trace`."""

    spans: tuple[Span, ...]


class TraceAnswer(Message, frozen=True):
    trace_id: str = ""
    spans: tuple[Span, ...] = ()
    error: str = ""
