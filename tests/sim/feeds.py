"""A reader of the watchers' feed, as the shells of placement and the preemptor have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shared.bus.feed import Follower, Gap
from shared.contracts.base import decode
from shared.contracts.facts import Fact, FeedBatch, SnapshotPage

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

UNANSWERED_S = 2.0
SILENCE_S = 5.0


class FeedReader:
    """Follows one watcher process; asks for a snapshot when it misses a batch, or hears nothing for long."""

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        *,
        awake: Callable[[Callable[[], None]], Callable[[], None]],
        session: Callable[[], int],
        snapshot: Callable[[tuple[Fact, ...], int], None],
        facts: Callable[[tuple[Fact, ...]], None],
    ) -> None:
        """`awake`: runs something if the process lives. `session`: another number with each session, 0: none."""
        self._simulation, self._name = simulation, name
        self._awake, self._session, self._snapshot, self._facts = awake, session, snapshot, facts
        self._heard = 0.0
        self._asked = 0
        self._follower = Follower()

    def begin(self) -> None:
        self._follower = Follower()

    def tick(self) -> None:
        if self._follower.epoch and self._simulation.clock.now - self._heard > SILENCE_S:
            self._simulation.clock.tell(f"{self._name} gives up the silent feed {self._follower.epoch}")
            self.want_snapshot()

    def batch(self, payload: bytes) -> None:
        def take() -> None:
            if not self._session():
                return
            batch = decode(payload, FeedBatch)
            if batch.epoch == self._follower.epoch:
                self._heard = self._simulation.clock.now
            try:
                facts = self._follower.batch(batch)
            except Gap:
                self._simulation.clock.tell(f"{self._name} misses a batch")
                self.want_snapshot()
                return
            if facts:
                self._facts(tuple(facts))

        self._awake(take)()

    def want_snapshot(self) -> None:
        self._follower.forget()
        self._ask_snapshot(self._session())

    def _ask_snapshot(self, session: int) -> None:
        if not session or self._session() != session or self._follower.epoch:
            return
        simulation = self._simulation
        watcher = simulation.rng.choice(simulation.watchers)
        self._asked += 1
        asked = self._asked  # a request has one answer, and one that comes after its time-out is no answer to the next

        def answer(page: SnapshotPage) -> None:
            def take() -> None:
                if self._session() != session or self._follower.epoch or asked != self._asked:
                    return
                self._heard = simulation.clock.now
                self._snapshot(page.facts, page.log_sequence_seen)
                try:
                    following = self._follower.snapshot(page.epoch, page.number)
                except Gap:
                    self.want_snapshot()
                    return
                if following:
                    self._facts(tuple(following))

            simulation.network.send(watcher.name, self._name, self._awake(take))

        simulation.network.send(self._name, watcher.name, lambda: watcher.snapshot(answer))
        simulation.clock.after(UNANSWERED_S, self._awake(lambda: self._ask_snapshot(session)))
