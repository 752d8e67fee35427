"""Throttle: the pod keeps part of its compute, so that it still responds, and all of its GPU memory."""

from __future__ import annotations

import msgspec

from services.preemptor.planning.actions.base import suspended_candidate
from services.preemptor.planning.candidate import Candidate
from shared.model.suspension import SuspendAction

KEEPS_ONE_IN = 10
"""A throttled pod keeps one part in so many of its compute."""


class Throttle:
    name: SuspendAction = "throttle"

    def apply(self, candidate: Candidate) -> Candidate | None:
        keeps_milli = max((share.compute_milli for share in candidate.shares), default=0) // KEEPS_ONE_IN
        shares = tuple(
            msgspec.structs.replace(share, compute_milli=max(0, share.compute_milli - keeps_milli), memory_mib=0)
            for share in candidate.shares
        )
        return suspended_candidate(candidate, self.name, shares, keeps_milli=keeps_milli)
