"""Says how long the copies of a turn take: GPU memory to the host, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from services.preemptor.turns.circles import TurnJob
from shared.book.book import Book
from shared.book.states import PodState
from shared.model.grant import sum_shares
from shared.model.suspension import SuspendAction


class Copies(msgspec.Struct, frozen=True):
    book: Book
    mib_per_s: float
    """Between one GPU and the host; all GPUs copy at once."""
    fixed_s: float
    """For each suspension and each resumption of a pod, besides its bytes."""
    max_part: float
    """The copies of a turn may take this part of its length."""

    def mib_of(self, members: Iterable[PodState]) -> int:
        """Returns the GPU memory that these pods were granted."""
        grants = [self.book.grants[state.grant_id].given for state in members if state.grant_id in self.book.grants]
        return sum(mib for mib, _ in sum_shares(grants).values())

    def both_ways_s(self, waiting: TurnJob, victims: Sequence[TurnJob], action: SuspendAction) -> float:
        """Returns how long the victims take to the host and back, and the waiting job if it is there."""
        return 2 * (
            (self._one_way_s([m for job in victims for m in job.members]) if action == "checkpoint" else 0.0)
            + self._one_way_s([m for m in waiting.members if self._is_parked(m)])
        )

    def _is_parked(self, state: PodState) -> bool:
        held = self.book.grants.get(state.grant_id)
        return held is not None and held.parked

    def _one_way_s(self, members: Sequence[PodState]) -> float:
        grants = [self.book.grants[state.grant_id].given for state in members]
        most_mib = max((mib for mib, _ in sum_shares(grants).values()), default=0)
        return self.fixed_s + most_mib / self.mib_per_s if members else 0.0
