"""Questions that metrics answers from the events and spans that it has received: usage, cost and traces."""

from __future__ import annotations

from shared.contracts.base import Message
from shared.contracts.query import Query


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
    since: str = ""
    """When the first slice began that is counted, as RFC 3339. Empty: none is, or metrics is of an earlier Kerf."""


class CostQuery(Message, frozen=True):
    """What did the slices of a period cost?"""

    by: str = "namespace"
    """namespace, pod, model, or label:KEY for a key of placement's `usage_labels`."""
    since: str = ""
    """A date or a time (RFC 3339, UTC where no zone is named); empty: the first of this month."""
    until: str = ""
    """The end, not included; empty: now. A time in the future counts as now."""
    most: int = 1000
    """How many rows at most, the most expensive first."""


class CostRow(Message, frozen=True):
    key: str
    """Empty: pods without that label."""
    gpu_seconds: float
    """The larger of the memory and compute share, times seconds; of whole GPUs."""
    memory_mib_seconds: float
    slices: int
    live: int = 0
    cost: float | None = None
    """In the answer's currency. None: no GPU model of it has a price."""
    unpriced_gpu_seconds: float = 0.0
    """Of GPU models without a price; they are not part of `cost`."""


class CostCapacity(Message, frozen=True):
    """What there was, and what of it no slice had."""

    gpu_seconds: float
    allocated_gpu_seconds: float
    idle_gpu_seconds: float
    stranded_gpu_seconds: float
    """Of the idle part: free compute that no waiting or usual request could take, sampled from placement."""
    allocated_cost: float | None = None
    idle_cost: float | None = None


class CostAnswer(Message, frozen=True):
    rows: tuple[CostRow, ...] = ()
    more: int = 0
    """Rows left out."""
    currency: str = ""
    since: str = ""
    until: str = ""
    capacity: CostCapacity | None = None
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


USAGE = Query(
    name="usage",
    question=UsageQuery,
    answer=UsageAnswer,
    receivers="metrics",
    description="Slice-seconds by namespace, pod or model.",
    examples=(
        UsageQuery(by="pod"),
        UsageAnswer(
            rows=(
                UsageRow(key="team-a/train-0", gpu_seconds=1080.0, memory_mib_seconds=58_982_400.0, slices=3, live=1),
            )
        ),
    ),
)
COST = Query(
    name="cost",
    question=CostQuery,
    answer=CostAnswer,
    receivers="metrics",
    description="What the slices of a period cost, and what was idle.",
    examples=(
        CostQuery(by="label:team", since="2026-11-01", until="2026-12-01"),
        CostAnswer(
            rows=(CostRow(key="vision", gpu_seconds=1080.0, memory_mib_seconds=58_982_400.0, slices=3, cost=0.9),),
            currency="EUR",
            since="2026-11-01T00:00:00Z",
            until="2026-12-01T00:00:00Z",
            capacity=CostCapacity(
                gpu_seconds=2000.0,
                allocated_gpu_seconds=1080.0,
                idle_gpu_seconds=920.0,
                stranded_gpu_seconds=40.0,
                allocated_cost=0.9,
                idle_cost=0.77,
            ),
        ),
    ),
)
TRACE = Query(
    name="trace",
    question=TraceQuery,
    answer=TraceAnswer,
    receivers="metrics",
    description="The spans of one pod's trace.",
)
