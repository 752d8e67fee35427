"""A pod that could be preempted, with its price and its resources."""

from __future__ import annotations

import msgspec

from shared.book.demand import Demand
from shared.contracts.preemption import Action
from shared.model.grant import GpuShare
from shared.model.suspension import SuspendAction


class Last(tuple[str, str]):
    """Sorts in descending order: the newest first."""

    __slots__ = ()

    def __lt__(self, other: tuple[str, ...]) -> bool:
        return tuple.__gt__(self, other)

    def __le__(self, other: tuple[str, ...]) -> bool:
        return tuple.__ge__(self, other)

    def __gt__(self, other: tuple[str, ...]) -> bool:
        return tuple.__lt__(self, other)

    def __ge__(self, other: tuple[str, ...]) -> bool:
        return tuple.__le__(self, other)


class Candidate(msgspec.Struct, frozen=True):
    """A pod that could be preempted by one action."""

    priority: int
    price_gpu_ms: int
    least_gpu_ms: int
    """The minimum price of its eviction, including gang members that end with it."""
    gpu_milli: int
    last: Last
    """Creation timestamp and name: of pods of one job those with the higher numbers are the newest."""
    uid: str
    node: str
    demand: Demand
    shares: tuple[GpuShare, ...]
    """Its shares of GPUs on its node."""
    budgets: tuple[str, ...] = ()
    """The names of the PodDisruptionBudgets that select it."""
    suspends: tuple[SuspendAction, ...] = ()
    """The actions that it can survive, in order of severity."""
    is_evictable: bool = True
    uses_mib: int | None = None
    """The maximum that it has recently had allocated on one GPU; None if it has not been observed for long enough."""
    action: Action = "evict"
    keeps_milli: int = 0
    keeps_mib: int = 0
    """What it keeps of each GPU when it is throttled or shrunk."""

    @property
    def cost(self) -> tuple[int, int, int, Last, str]:
        """The sort key of victims: lowest priority, then cheapest, then smallest, then newest."""
        return self.priority, self.least_gpu_ms, self.gpu_milli, self.last, self.uid
