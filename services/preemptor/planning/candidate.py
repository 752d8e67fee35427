"""A pod that could be preempted, with its price and its resources."""

from __future__ import annotations

import msgspec

from shared.book.demand import Demand
from shared.contracts.preemption import Action
from shared.model.grant import GpuShare
from shared.model.suspension import SUSPEND_ACTIONS, SuspendAction, Suspension
from shared.scheduling.transaction import Transaction


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


Bound = tuple[int, int, int, int, int, Last]
"""A cost, or a lower bound of one, as `bounds.cost_of` returns it, without the place."""


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
    grant_id: str
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
    gang: str = ""
    gang_milli: int = 0
    """The key of its gang, and the GPU milli of all members that have places."""

    def leave(self, trial: Transaction) -> None:
        """Does to the trial's book what the action does: the pod leaves, or gives up part of what it has."""
        if self.action in SUSPEND_ACTIONS:
            suspension = Suspension(
                action=self.action, plan_id="", compute_milli=self.keeps_milli, memory_mib=self.keeps_mib
            )
            trial.suspend(self.grant_id, suspension)
        else:
            trial.end(self.uid, self.grant_id)

    def stay(self, trial: Transaction) -> None:
        """Undoes `leave`."""
        if self.action in SUSPEND_ACTIONS:
            trial.suspend(self.grant_id, None)
        else:
            trial.put_back(self.uid)

    @property
    def disturbed(self) -> tuple[str, int]:
        """What does not go on as before, by its key, and its GPU milli: of a gang with a suspended member all, because
        the others wait for it."""
        if self.gang and self.action in SUSPEND_ACTIONS:
            return self.gang, self.gang_milli
        return self.uid, self.gpu_milli

    @property
    def cost(self) -> tuple[int, int, int, Last, str]:
        """The sort key of victims: lowest priority, then cheapest, then smallest, then newest."""
        return self.priority, self.least_gpu_ms, self.disturbed[1], self.last, self.uid
