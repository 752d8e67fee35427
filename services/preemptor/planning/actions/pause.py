"""Pause: the pod starts no more GPU work. Its GPU memory stays allocated."""

from __future__ import annotations

import msgspec

from services.preemptor.planning.actions.base import suspended_candidate
from services.preemptor.planning.candidate import Candidate
from shared.model.suspension import SuspendAction


class Pause:
    name: SuspendAction = "pause"

    def apply(self, candidate: Candidate) -> Candidate | None:
        return suspended_candidate(
            candidate, self.name, tuple(msgspec.structs.replace(share, memory_mib=0) for share in candidate.shares)
        )
