"""It stands still, and what it has on GPUs goes to the host's memory."""

from __future__ import annotations

from services.preemptor.actions.base import suspension_of
from services.preemptor.candidate import Candidate
from shared.model.suspension import SuspendAction


class Checkpoint:
    name: SuspendAction = "checkpoint"

    def of(self, candidate: Candidate) -> Candidate | None:
        return suspension_of(candidate, self.name, candidate.shares)
