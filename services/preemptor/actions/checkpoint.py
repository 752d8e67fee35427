"""It stands still, and what it has on GPUs goes to the host's memory."""

from __future__ import annotations

from services.preemptor.actions.base import giving
from services.preemptor.candidate import Candidate
from shared.model.suspension import SuspendAction


class Checkpoint:
    name: SuspendAction = "checkpoint"

    def of(self, candidate: Candidate) -> Candidate | None:
        return giving(candidate, self.name, candidate.shares)
