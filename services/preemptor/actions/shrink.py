"""It keeps what it has allocated, with something to spare, and cannot grow until there is room again. It goes on at full speed.

Asked only of pods that have been seen using less for a while, and only where an installation says so: a program that allocates
beyond what is left to it fails as on a full GPU, and may end by that.
"""

from __future__ import annotations

import msgspec

from services.preemptor.actions.base import suspension_of
from services.preemptor.candidate import Candidate
from shared.model.suspension import SuspendAction

SPARE_PERCENT = 10
MIN_SPARE_MIB = 256
"""To spare beyond the most that it has used of late: as much as a library's workspace takes."""


class Shrink:
    name: SuspendAction = "shrink"

    def of(self, candidate: Candidate) -> Candidate | None:
        uses_mib = candidate.uses_mib
        if uses_mib is None:
            return None
        keeps_mib = uses_mib + max(MIN_SPARE_MIB, -(-uses_mib * SPARE_PERCENT // 100))
        shares = tuple(
            msgspec.structs.replace(share, compute_milli=0, memory_mib=max(0, share.memory_mib - keeps_mib))
            for share in candidate.shares
        )
        return suspension_of(candidate, self.name, shares, keeps_mib=keeps_mib)
