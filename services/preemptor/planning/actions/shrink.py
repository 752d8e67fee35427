"""Shrink: the pod keeps its allocated GPU memory plus a spare part, and runs at full speed.

It cannot allocate more until there is capacity again. Only pods that have used less for a while are shrunk, and only if
the setting `shrinks` allows it: a program that allocates more than it was left fails as on a full GPU, and may exit.
"""

from __future__ import annotations

import msgspec

from services.preemptor.planning.actions.base import suspended_candidate
from services.preemptor.planning.candidate import Candidate
from shared.model.suspension import SuspendAction

SPARE_PERCENT = 10
MIN_SPARE_MIB = 256
"""Spare memory beyond the maximum of recent use: as much as the workspace of a library takes."""


class Shrink:
    name: SuspendAction = "shrink"

    def apply(self, candidate: Candidate) -> Candidate | None:
        uses_mib = candidate.uses_mib
        if uses_mib is None:
            return None
        keeps_mib = uses_mib + max(MIN_SPARE_MIB, -(-uses_mib * SPARE_PERCENT // 100))
        shares = tuple(
            msgspec.structs.replace(share, compute_milli=0, memory_mib=max(0, share.memory_mib - keeps_mib))
            for share in candidate.shares
        )
        return suspended_candidate(candidate, self.name, shares, keeps_mib=keeps_mib)
