"""A pod that could give way, with its price and what it has."""

from __future__ import annotations

import msgspec

from shared.book.demand import Demand
from shared.contracts.preemption import Action
from shared.model.grant import GpuShare
from shared.model.suspension import SuspendAction


class Last(tuple[str, str]):
    """What came last sorts first."""

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
    """A pod that could give way."""

    priority: int
    price_gpu_ms: int
    least_gpu_ms: int
    """What its going costs at the least, with those who have to go with it."""
    gpu_milli: int
    last: Last
    """Creation and name: of pods of one job those with the greater numbers came last."""
    uid: str
    node: str
    demand: Demand
    shares: tuple[GpuShare, ...]
    """On its node."""
    budgets: tuple[str, ...] = ()
    """The PodDisruptionBudgets that it is under."""
    suspends: tuple[SuspendAction, ...] = ()
    """What it can give up without ending, from gentle to hard."""
    may_end: bool = True
    uses_mib: int | None = None
    """The most of one GPU that it has had allocated of late; None where nobody has said so for long enough."""
    action: Action = "evict"
    keeps_milli: int = 0
    keeps_mib: int = 0
    """Of each GPU, where it is throttled or shrunk."""

    @property
    def cost(self) -> tuple[int, int, int, Last, str]:
        """The least important first, then the cheapest, then the smallest; of equals who came last."""
        return self.priority, self.least_gpu_ms, self.gpu_milli, self.last, self.uid
