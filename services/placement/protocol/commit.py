"""Tries pods in order, and turns a place that was found into grant, hold, log record and event."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.placement import messages as m
from services.placement.config import Config
from services.placement.engine.engine import Engine, Place
from services.placement.protocol.decision_events import DecisionEvents
from services.placement.protocol.holds import Hold, Holds
from services.placement.protocol.resizing import Resizer
from services.placement.protocol.suspension import Suspender
from services.placement.protocol.write_batcher import RECORD_MOST_BYTES, WriteBatcher
from services.placement.scheduler import Scheduler
from services.placement.scheduling.claims import allocations
from services.placement.scheduling.gangs.messages import gang_too_large
from services.placement.scheduling.gangs.placing import Placed
from services.placement.scheduling.grants import SessionGrants
from services.placement.scheduling.queue import Queue
from services.placement.scheduling.unplaced import Unplaced
from services.placement.stats import Stats
from shared.book.book import Book
from shared.book.gangs import Gangs, GangState
from shared.book.states import PodState
from shared.contracts.base import encode
from shared.contracts.events import GangPlaced, PlacementDecided
from shared.contracts.log import Decision
from shared.model.grant import Grant
from shared.scheduling.transaction import Transaction

ATTEMPTS_PER_TURN = 64
COST_BESIDE = 8
"""An attempt of a pod that depends on the pods of all nodes costs as much as so many others, or more: a turn of nothing
else must not outlast the lease of the leader."""


class Committer:
    def __init__(
        self,
        scheduler: Scheduler,
        book: Book,
        *,
        engine: Engine,
        gangs: Gangs,
        queue: Queue,
        events: DecisionEvents,
        unplaced: Unplaced,
        grants: SessionGrants,
        suspender: Suspender,
        resizer: Resizer,
        holds: Holds,
        batcher: WriteBatcher,
        config: Config,
        stats: Stats,
    ) -> None:
        self._scheduler, self._book, self._engine, self._gangs = scheduler, book, engine, gangs
        self._queue, self._events, self._unplaced = queue, events, unplaced
        self._grants, self._suspender, self._resizer = grants, suspender, resizer
        self._holds, self._batcher, self._config, self._stats = holds, batcher, config, stats
        self.idle = False
        """Whether the last turn found no pod to try."""

    def turn(self, term: int, now: float) -> list[m.Command]:
        """Tries pods in order until the batch is full or too many holds are open, and appends what is due. Before each
        of them, suspended pods resume (for no open plan, and not preemptible by it) and slices grow."""
        self._suspender.begin_turn()
        self._scheduler.begin_turn()
        out: list[m.Command] = []
        attempts = 0
        while not self._batcher.full and len(self._holds) < self._config.max_holds:
            uid = self._queue.next(now)
            if uid is None:
                break
            if attempts >= ATTEMPTS_PER_TURN:
                out.append(m.Again())
                break
            if self._suspender.has_resumable or self._resizer.has_growing:
                self._scheduler.show_all()  # these run already: nothing is reserved from them
            out += self._suspender.resume_before(self._book.pods[uid], now)
            out += self._resizer.grow_before(self._book.pods[uid], now)
            gang = self._gangs.of(uid)
            if gang is not None:
                if gang.need > self._config.max_batch and not self._batcher.empty:
                    break  # it begins a record of its own
                attempts += max(1, gang.need)
                out += self._decide_gang(gang, uid, now)
                continue
            state = self._book.pods[uid]
            attempts += COST_BESIDE if state.awaits_pods or state.repels else 1
            place, said = self._scheduler.attempt(state, now)
            out += said
            if place is not None:
                grant = self._grants.grant(state, place)
                self._book.hold(state.uid, place.node, grant)
                self._record(state, place, grant, now)
        self._scheduler.show_all()
        out += self._batcher.due(term, now)
        self.idle = attempts == 0
        return out

    def take(
        self, places: Sequence[tuple[str, str]], now: float, release: Callable[[str], None]
    ) -> list[m.Command] | None:
        """Gives these pods, by uid, the places on these nodes that are reserved for them, by ordinary decisions.
        Returns None if one of them no longer fits there: then none has a place. One with volumes that have yet to be
        bound to its node has its place kept for that, and what is to be ordered is returned.

        `release` releases what is reserved for a pod. It is called just before that pod is decided: it may get another
        GPU than the reserved one, and what is reserved for the others must not become that.
        """
        placed: list[Placed] = []
        gang, transaction = self._gangs.of(places[0][0]), Transaction(self._book)
        for uid, node in places:
            release(uid)
            self._scheduler.late_claims.take_off(uid)
            state = self._book.pods[uid]
            place = self._engine.decide(state, self._engine.only(node))
            if place is None:
                transaction.roll_back()
                return None
            if (late := self._scheduler.await_volumes(state, place, now)) is not None:
                transaction.roll_back()
                return late
            grant = self._grants.grant(state, place)
            transaction.hold(state.uid, place.node, grant)
            placed.append(Placed(state, place, grant))
        transaction.commit()
        for one in placed:
            self._queue.remove(one.state.uid)
            self._record(one.state, one.place, one.grant, now, gang="" if gang is None else gang.name)
            self._scheduler.note(one.state, now)
        return []

    def _decide_gang(self, gang: GangState, uid: str, now: float) -> list[m.Command]:
        """All members that the gang needs, or none. The decisions are gathered together, so they are in one record."""
        transaction = Transaction(self._book)
        tried, said = self._scheduler.attempt_gang(gang, uid, now, self._grants, transaction)
        placed = tried.placed
        size = sum(len(encode(self._decision(one.state, one.place, one.grant))) for one in placed)
        if size > RECORD_MOST_BYTES:
            transaction.roll_back()
            why = gang_too_large(len(placed), size, RECORD_MOST_BYTES)
            self._scheduler.gang_refused(gang, placed, why, now)
            return said
        transaction.commit()
        for one in placed:
            self._record(one.state, one.place, one.grant, now, gang=gang.name)
            self._scheduler.note(one.state, now)
        if len(placed) > 1:
            self._unplaced.forget_gang(gang.key)
            self._events.keep_gang(
                placed[0].state.uid,
                GangPlaced(
                    namespace=gang.namespace,
                    name=gang.name,
                    pods=tuple(one.state.pod.metadata.name for one in placed),
                    nodes=len({one.place.node for one in placed}),
                    minimum=gang.minimum,
                    term=self._grants.term,
                    sequence=0,
                    area=tried.area,
                    waited_ms=max(self._scheduler.waited_ms(one.state.uid, now) for one in placed),
                ),
            )
        return said

    def _record(self, state: PodState, place: Place, grant: Grant | None, now: float, *, gang: str = "") -> None:
        """The book holds it; the log is next."""
        meta = state.pod.metadata
        decision = self._decision(state, place, grant)
        self._holds[state.uid] = Hold(decision, now)
        self._scheduler.beside_changed()
        self._batcher.gather(decision)
        self._stats.decisions += 1
        self._unplaced.placed(state.uid)
        self._events.keep(
            PlacementDecided(
                uid=state.uid,
                namespace=meta.namespace,
                name=meta.name,
                node=place.node,
                term=self._grants.term,
                sequence=0,
                grant=grant,
                gang=gang,
                policy=place.policy,
                scores={"total": place.total},
                feasible_nodes=place.feasible_nodes,
                waited_ms=self._scheduler.waited_ms(state.uid, now),
                choice=place.choice,
                labels={key: meta.labels[key] for key in self._config.usage_labels if key in meta.labels},
            ),
        )

    def _decision(self, state: PodState, place: Place, grant: Grant | None) -> Decision:
        meta = state.pod.metadata
        claims = allocations(state, grant, self._book) if state.claims and grant is not None else ()
        return Decision(
            uid=state.uid,
            namespace=meta.namespace,
            name=meta.name,
            resource_version=meta.resource_version,
            node=place.node,
            grant=grant,
            claims=claims,
        )
