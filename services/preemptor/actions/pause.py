"""It begins no more work. Its memory stays where it is."""

from __future__ import annotations

import msgspec

from services.preemptor.actions.base import suspension_of
from services.preemptor.candidate import Candidate
from shared.model.suspension import SuspendAction


class Pause:
    name: SuspendAction = "pause"

    def of(self, candidate: Candidate) -> Candidate | None:
        return suspension_of(
            candidate, self.name, tuple(msgspec.structs.replace(share, memory_mib=0) for share in candidate.shares)
        )
