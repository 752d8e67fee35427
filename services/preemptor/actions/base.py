"""What an action is that ends nobody."""

from __future__ import annotations

from typing import Protocol

import msgspec

from services.preemptor.candidate import Candidate
from shared.book.demand import Demand
from shared.model.grant import GpuShare
from shared.model.suspension import SuspendAction


class SuspensionAction(Protocol):
    """A pod gives something up and goes on, or stands still, until there is room for it again."""

    name: SuspendAction

    def of(self, candidate: Candidate) -> Candidate | None:
        """The same pod that gives it up: `shares` is what others get. None where it has nothing of the kind to give."""


def suspension_of(
    candidate: Candidate,
    action: SuspendAction,
    shares: tuple[GpuShare, ...],
    *,
    keeps_milli: int = 0,
    keeps_mib: int = 0,
) -> Candidate | None:
    """Nothing of its work is lost, no budget is touched, and its CPU and memory it keeps."""
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
