"""The interface of the actions that a pod survives."""

from __future__ import annotations

from typing import Protocol

import msgspec

from services.preemptor.planning.candidate import Candidate
from shared.book.demand import Demand
from shared.model.grant import GpuShare
from shared.model.suspension import SuspendAction


class SuspensionAction(Protocol):
    """A pod gives something up and keeps running, or pauses, until there is capacity for it again."""

    name: SuspendAction

    def apply(self, candidate: Candidate) -> Candidate | None:
        """Returns the candidate with this action applied; None if it has nothing of the kind to give up.

        Its `shares` are what other pods get.
        """


def suspended_candidate(
    candidate: Candidate,
    action: SuspendAction,
    shares: tuple[GpuShare, ...],
    *,
    keeps_milli: int = 0,
    keeps_mib: int = 0,
) -> Candidate | None:
    """Returns the candidate that gives up these shares; None if they are empty.

    It loses no work, counts against no disruption budget, and keeps its CPU and memory.
    """
    if not any(share.memory_mib or share.compute_milli for share in shares):
        return None
    return msgspec.structs.replace(
        candidate,
        shares=shares,
        action=action,
        keeps_milli=keeps_milli,
        keeps_mib=keeps_mib,
        price_gpu_ms=0,
        least_gpu_ms=0,
        demand=Demand(),
        budgets=(),
    )
