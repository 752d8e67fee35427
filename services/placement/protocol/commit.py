"""Tries pods in order, and turns a place that was found into grant, hold, log record and event."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.placement import messages as m
from services.placement.engine.engine import Place
from services.placement.protocol.claims import allocations, with_claims
from services.placement.protocol.holds import Hold, Holds
from services.placement.protocol.write_batcher import RECORD_MOST_BYTES, WriteBatcher
from services.placement.scheduler import Scheduler
from services.placement.scheduling.gangs.placing import Placed, take_back
from services.placement.settings import Settings
from shared.book.gangs import GangState
from shared.book.states import PodState
from shared.contracts.base import encode
from shared.contracts.events import GangPlaced, PlacementDecided
from shared.contracts.log import Decision
from shared.model import names
from shared.model.grant import Grant

ATTEMPTS_PER_TURN = 64


class Committer:
    def __init__(
        self,
        scheduler: Scheduler,
        holds: Holds,
        batcher: WriteBatcher,
        settings: Settings,
        trace_of: Callable[[str], str],
    ) -> None:
        self.scheduler, self.holds, self.batcher, self.settings = scheduler, holds, batcher, settings
        self.trace_of = trace_of
        self.term = 0
        self._grants_made = 0

    def turn(
        self, term: int, now: float, before: Callable[[PodState], list[m.Command]] = lambda _: []
    ) -> list[m.Command]:
        """Tries pods in order until the batch is full or too many holds are open, and appends what is due. `before`
        returns what is sent before one of them is tried."""
        self.term = term
        out: list[m.Command] = []
        attempts = 0
        while not self.batcher.full and len(self.holds) < self.settings.max_holds:
            uid = self.scheduler.queue.next(now)
            if uid is None:
                break
            if attempts >= ATTEMPTS_PER_TURN:
                out.append(m.Again())
                break
            out += before(self.scheduler.book.pods[uid])
            gang = self.scheduler.gangs.of(uid)
            if gang is not None:
                if gang.need > self.settings.max_batch and not self.batcher.empty:
                    break  # it begins a record of its own
                attempts += max(1, gang.need)
                out += self._decide_gang(gang, uid, now)
                continue
            attempts += 1
            state = self.scheduler.book.pods[uid]
            place, said = self.scheduler.attempt(state, now)
            out += said
            if place is not None:
                grant = self.grant(state, place)
                self.scheduler.book.hold(state.uid, place.node, grant)
                self._record(state, place, grant, now)
        out += self.batcher.due(term, now)
        if attempts == 0:
            out += self.scheduler.explain_one(now)
        return out

    def take(self, places: Sequence[tuple[str, str]], now: float) -> bool:
        """Gives these pods, by uid, the places on these nodes that were reserved for them, by ordinary decisions.
        Returns False if one of them no longer fits there; then none has a place."""
        placed: list[Placed] = []
        engine, gang = self.scheduler.engine, self.scheduler.gangs.of(places[0][0])
        for uid, node in places:
            state = self.scheduler.book.pods[uid]
            place = engine.decide(state, engine.only(node))
            if place is None:
                take_back(placed, engine)
                return False
            grant = self.grant(state, place)
            self.scheduler.book.hold(state.uid, place.node, grant)
            placed.append(Placed(state, place, grant))
        for one in placed:
            self.scheduler.queue.remove(one.state.uid)
            self._record(one.state, one.place, one.grant, now, gang="" if gang is None else gang.name)
            self.scheduler.note(one.state, now)
        return True

    def _decide_gang(self, gang: GangState, uid: str, now: float) -> list[m.Command]:
        """All members that the gang needs, or none. The decisions are gathered together, so they are in one record."""
        tried, said = self.scheduler.attempt_gang(gang, uid, now, self.grant)
        placed = tried.placed
        size = sum(len(encode(self._decision(one.state, one.place, one.grant))) for one in placed)
        if size > RECORD_MOST_BYTES:
            why = (
                f"the decisions for {len(placed)} of its pods come to {size} bytes, and the log takes "
                f"{RECORD_MOST_BYTES} in one record"
            )
            self.scheduler.gang_refused(gang, placed, why, now)
            return said
        for one in placed:
            self._record(one.state, one.place, one.grant, now, gang=gang.name)
            self.scheduler.note(one.state, now)
        if len(placed) > 1:
            self.scheduler.reports.gang_decided(
                placed[0].state.uid,
                GangPlaced(
                    namespace=gang.namespace,
                    name=gang.name,
                    pods=tuple(one.state.pod.metadata.name for one in placed),
                    nodes=len({one.place.node for one in placed}),
                    minimum=gang.minimum,
                    term=self.term,
                    sequence=0,
                    area=tried.area,
                    waited_ms=max(self.scheduler.waited_ms(one.state.uid, now) for one in placed),
                ),
            )
        return said

    def grant(self, state: PodState, place: Place) -> Grant | None:
        """A new grant for this place; None for a pod without GPUs."""
        if not place.containers:
            return None
        self._grants_made += 1
        dialect = state.pod.metadata.annotations.get(names.ANNOTATION_DIALECT, "")
        return Grant(
            grant_id=f"{self.term:x}-{self._grants_made:x}",
            term=self.term,
            traceparent=self.trace_of(state.uid),
            dialect=dialect,
            containers=with_claims(place.containers, state, self.scheduler.book),
            priority=state.pod.spec.priority,
            tier="" if state.request is None else state.request.tier,
        )

    def _record(self, state: PodState, place: Place, grant: Grant | None, now: float, *, gang: str = "") -> None:
        """The book holds it; the log is next."""
        meta = state.pod.metadata
        decision = self._decision(state, place, grant)
        self.holds[state.uid] = Hold(decision, now)
        self.batcher.gather(decision)
        self.scheduler.stats.decisions += 1
        self.scheduler.reports.decided(
            state.uid,
            PlacementDecided(
                uid=state.uid,
                namespace=meta.namespace,
                name=meta.name,
                node=place.node,
                term=self.term,
                sequence=0,
                grant=grant,
                gang=gang,
                policy=place.policy,
                scores={"total": place.total},
                feasible_nodes=place.feasible_nodes,
                waited_ms=self.scheduler.waited_ms(state.uid, now),
            ),
        )

    def _decision(self, state: PodState, place: Place, grant: Grant | None) -> Decision:
        meta = state.pod.metadata
        claims = allocations(state, grant, self.scheduler.book) if state.claims and grant is not None else ()
        return Decision(
            uid=state.uid,
            namespace=meta.namespace,
            name=meta.name,
            resource_version=meta.resource_version,
            node=place.node,
            grant=grant,
            claims=claims,
        )
