"""Checkpoint: the pod pauses, and its GPU memory moves to host memory."""

from __future__ import annotations

from services.preemptor.planning.actions.base import suspended_candidate
from services.preemptor.planning.candidate import Candidate
from shared.model.suspension import SuspendAction


class Checkpoint:
    name: SuspendAction = "checkpoint"

    def apply(self, candidate: Candidate) -> Candidate | None:
        return suspended_candidate(candidate, self.name, candidate.shares)
