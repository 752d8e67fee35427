"""It keeps a part of its compute, so that it shows signs of life, and all of its memory."""

from __future__ import annotations

import msgspec

from services.preemptor.actions.base import suspension_of
from services.preemptor.candidate import Candidate
from shared.model.suspension import SuspendAction

KEEPS_ONE_IN = 10
"""Of its compute."""


class Throttle:
    name: SuspendAction = "throttle"

    def of(self, candidate: Candidate) -> Candidate | None:
        why_not_migrated = max((share.compute_milli for share in candidate.shares), default=0) // KEEPS_ONE_IN
        shares = tuple(
            msgspec.structs.replace(share, compute_milli=max(0, share.compute_milli - why_not_migrated), memory_mib=0)
            for share in candidate.shares
        )
        return suspension_of(candidate, self.name, shares, keeps_milli=why_not_migrated)
