"""Placement's settings."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from shared.model.policies import POLICIES
from shared.model.units import MIB, quantity
from shared.service.settings import Count, Patience, Ratio, Seconds


class Config(msgspec.Struct, frozen=True, kw_only=True):
    FORMER_NAMES: ClassVar[dict[str, str]] = {"max_holds": "holds_most"}

    policy: str = "kerf"
    """For pods that name none: kerf, binpack, spread or least-loaded-nearest."""
    renew_term_s: Seconds = 6 * 3600
    """How often a leader takes a new term, so that no record that it needs ages out of the log."""
    renew_term_decisions: Count = 100_000
    """It also takes one after so many decisions, so that its successor reads no more of the log than these."""
    max_holds: Count = 256
    """Decisions whose Binding has not been seen. At this many, placement waits for the API server."""
    max_batch: Count = 64
    """Decisions in one record of the log."""
    exclude_after_s: Seconds = 60.0
    """A pod that no touch has moved for so long is excluded, whatever the answers were: a webhook may hang, or undo
    what a touch writes."""

    advertise_capacity: bool = True
    """Whether nodes advertise Kerf's resources in their status, for autoscalers, Kueue and people."""
    quota_gpu_memory: str = "80Gi"
    """As admission and the policies have it: the memory that counts as a whole GPU in what nodes advertise."""
    autoscaler: bool = False
    """Whether an autoscaler adds nodes: nodes that only look as if a waiting pod fitted are tainted, pods for which a
    plan makes room are nominated, and `capacity.wanted` is published."""
    learn_use: bool = True
    """Whether the agents' samples are heard, to learn what pods do on GPUs."""
    weigh_learned: bool = False
    """Whether what sharing slows down is also weighed for pods that declare nothing, once their owner is known."""
    max_slowdown: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 1.25
    """A pod that agrees to a GPU of another node and does not say how slow it may become (kerf.dev/max-slowdown) gets
    none that would make it slower than this, as a factor."""
    resize_beyond_request: bool = False
    """Whether a running slice may grow beyond what its pod requests, where no ResourceQuota of its namespace counts
    GPUs. Off, it can shrink, and grow again up to its request: Kueue and LimitRanges know of requests alone."""
    reserve_after_s: Patience = 0.0
    """How long the first pod or gang of the queue waits before capacity is reserved for it; 0: none ever is. A queue
    may have its own (`reserve_after_s` in queues.yaml)."""
    max_reservations: Count = 1
    """For how many waiting pods and gangs capacity may be reserved at once."""
    max_reserved_share: Ratio = 0.5
    """The part of the cluster's GPUs that may be reserved for them."""
    usage_labels: tuple[str, ...] = ()
    """Keys of pod labels that decisions carry, so that `kerf cost --by label:KEY` can tell usage by them."""

    def __post_init__(self) -> None:
        if quantity(self.quota_gpu_memory) < MIB:
            raise ValueError(f"quota_gpu_memory is {self.quota_gpu_memory}; write a GPU's memory, such as 80Gi")
        if self.policy not in POLICIES:
            raise ValueError(f"policy is {self.policy!r}; it must be one of {', '.join(POLICIES)}")
