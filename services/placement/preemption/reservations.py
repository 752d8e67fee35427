"""Places kept for those for whom others give way: a plan of the preemptor, held against the book and then kept.

What a plan keeps is booked twice while its victims still have it, so whatever they give back is the reservation's alone. The
moment that all of them have given back, the beneficiaries get their places by an ordinary decision on the nodes named. A
reservation that is not logged is nobody's order yet; one that is over stands in the log as over only after the decisions
that came of it.
"""

from __future__ import annotations

import msgspec

from services.placement.engine.engine import Engine
from services.placement.explain.trial import Trial
from services.placement.preemption import consolidation as consolidating
from services.placement.preemption.migration import Migrations
from services.placement.preemption.suspension import Suspender, is_suspension, suspension_by
from services.placement.protocol.write_batcher import RECORD_MOST_BYTES
from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.book.levels import topology_violation
from shared.book.states import PodState
from shared.contracts.base import encode
from shared.contracts.log import ReservationRecord
from shared.contracts.preemption import HeldPlace, Plan
from shared.model.life import STUCK_S, grace_s
from shared.model.suspension import can_suspend
from shared.queues.preemption_policy import PreemptionPolicy


class Reservation(msgspec.Struct):
    plan: Plan
    places: dict[str, HeldPlace]
    shadows: list[PodState]
    """What stands on the nodes for the beneficiaries."""
    since: float
    until: float
    logged: bool = False
    changed: bool = False
    """It is not quite what was asked for: some who were to move have no place elsewhere, and just end."""
    answered: bool = False
    """Its evictions may be asked for: whatever others give up without ending is given up."""
    ending: dict[str, float] = {}
    """Victims that have been deleted, by uid, and until when each is waited for: as long as it has to end, and a little longer."""

    def record(self, term: int, *, over: bool = False) -> ReservationRecord:
        return ReservationRecord(term=term, plan=self.plan, places={} if over else self.places, over=over)


class Reservations(dict[str, Reservation]):
    """The open ones, by plan id."""

    def __init__(
        self,
        engine: Engine,
        gangs: Gangs,
        preemption_policy: PreemptionPolicy,
        suspension: Suspender,
        moves: Migrations,
    ) -> None:
        super().__init__()
        self._engine, self._gangs, self._preemption_policy, self._suspender, self._migrations = (
            engine,
            gangs,
            preemption_policy,
            suspension,
            moves,
        )

    @property
    def book(self) -> Book:
        return self._engine.book

    def refusal(self, plan: Plan) -> str:
        """Why this plan is not reserved; empty where it may be."""
        states = [self.book.pods.get(b.uid) for b in plan.beneficiaries]
        for beneficiary, state in zip(plan.beneficiaries, states, strict=True):
            if state is None or not state.wants_place or state.charged or state.refusal:
                return f"{beneficiary.namespace}/{beneficiary.name} does not wait for a place"
            if state.never_preempts:
                return f"{state.key} has preemptionPolicy Never"
        waiting = [state for state in states if state is not None]
        if not waiting or not plan.victims:
            return "a plan needs somebody who waits, and somebody who gives way"
        taken = {b.uid for r in self.values() for b in r.plan.beneficiaries} & {b.uid for b in plan.beneficiaries}
        busy = {b.node for r in self.values() for b in r.plan.beneficiaries} & {b.node for b in plan.beneficiaries}
        if taken or busy:
            return f"another plan is under way for {', '.join(sorted(taken or busy))}"
        return self._gang(waiting, plan) or self._victims(plan, waiting) or self._needed(plan, waiting)

    def reserve(self, plan: Plan, term: int, now: float) -> ReservationRecord | str:
        """Keeps the plan's places on the book; returns what has to stand in the log, or why nothing is kept."""
        refused = self.refusal(plan)
        if refused:
            return refused
        places = self._try(plan, {victim.uid for victim in plan.victims})
        if places is None:
            return "the beneficiaries would not fit even then"
        for uid, place in places.items():
            if place.grant is not None:
                grant_id = f"reserved/{plan.plan_id}/{uid}"
                places[uid] = HeldPlace(
                    node=place.node, grant=msgspec.structs.replace(place.grant, grant_id=grant_id, term=term)
                )
        asked, plan = plan, _without_place(plan, places)
        size = len(encode(ReservationRecord(term=term, plan=plan, places=places)))
        if size > RECORD_MOST_BYTES:
            return f"the plan comes to {size} bytes, and the log takes {RECORD_MOST_BYTES} in one record"
        kept = self._keep(plan, places, now)
        kept.changed = plan != asked
        return kept.record(term)

    def readopt(self, record: ReservationRecord, now: float) -> Reservation | None:
        """A reservation of an earlier term, if its beneficiaries still wait. Its deadline begins anew: no clock outlives a
        leader."""
        states = [self.book.pods.get(b.uid) for b in record.plan.beneficiaries]
        if all(s is not None and s.wants_place and not s.charged for s in states) and all(
            b.node in self.book.nodes for b in record.plan.beneficiaries
        ):
            kept = self._keep(record.plan, record.places, now)
            kept.logged = True
            return kept
        return None

    def of(self, plan: Plan) -> Plan | None:
        """The plan that is reserved for all of its beneficiaries, or for more."""
        wanted = {b.uid for b in plan.beneficiaries}
        return next(
            (r.plan for r in self.values() if r.answered and wanted <= {b.uid for b in r.plan.beneficiaries}), None
        )

    def end(self, plan_id: str) -> Reservation | None:
        """Releases the reservation."""
        found = self.pop(plan_id, None)
        for shadow in () if found is None else found.shadows:
            self.book.unreserve(shadow)
        for uid in () if found is None else [b.uid for b in found.plan.beneficiaries]:
            gang = self._gangs.of(uid)
            if gang is not None:
                gang.kept.pop(uid, None)
        return found

    def free(self) -> list[Reservation]:
        """Those whose victims have all given back, on nodes whose agents have told this leader what runs there."""
        return [
            r
            for r in self.values()
            if r.logged
            and all(self._suspender.is_done(victim, r.plan.plan_id) for victim in r.plan.victims)
            and not any(self.book.nodes[b.node].agent_trouble for b in r.plan.beneficiaries)
        ]

    def obsolete(self, now: float) -> list[tuple[Reservation, str]]:
        """Those that nobody needs any more, or that have taken too long, with the reason."""
        found = []
        for reservation in self.values():
            lost = [b for b in reservation.plan.beneficiaries if not self._waits(b.uid)]
            if lost:
                found.append((reservation, f"{lost[0].namespace}/{lost[0].name} does not wait any more"))
            elif reservation.logged and reservation.until <= now and not self._all_end(reservation, now):
                found.append(
                    (reservation, f"not all of its victims were gone after {round(now - reservation.since)} s")
                )
        return found

    def see_ends(self, now: float) -> None:
        """Notes which victims have been deleted. By our own clock: the time that their objects name is the API server's."""
        for reservation in self.values():
            for uid in [victim.uid for victim in reservation.plan.victims if victim.uid not in reservation.ending]:
                state = self.book.pods.get(uid)
                if state is not None and state.pod.metadata.deletion_timestamp is not None:
                    reservation.ending[uid] = now + grace_s(state.pod) + STUCK_S

    def _all_end(self, reservation: Reservation, now: float) -> bool:
        """What has begun is waited for: to give up what all are about to give back would have ended them for nothing."""
        plan = reservation.plan
        left = [victim.uid for victim in plan.victims if not self._suspender.is_done(victim, plan.plan_id)]
        return bool(left) and all(now < reservation.ending.get(uid, now) for uid in left)

    def _waits(self, uid: str) -> bool:
        state = self.book.pods.get(uid)
        return state is not None and state.wants_place and not state.charged

    def _gang(self, waiting: list[PodState], plan: Plan) -> str:
        gangs = {None if gang is None else gang.key for state in waiting for gang in (self._gangs.of(state.uid),)}
        if len(waiting) == 1 and gangs == {None}:
            return ""
        if len(gangs) > 1 or None in gangs:
            return "several beneficiaries must be members of one gang"
        gang = self._gangs.of(waiting[0].uid)
        if gang is None or len(waiting) < gang.need:
            return f"gang {'' if gang is None else gang.name} needs {0 if gang is None else gang.need} places at once, the plan has {len(waiting)}"
        if gang.kept:
            return f"another plan is under way for gang {gang.name}"
        return topology_violation(gang, frozenset(b.node for b in plan.beneficiaries), self.book)

    def _victims(self, plan: Plan, waiting: list[PodState]) -> str:
        giving = {v.uid for r in self.values() for v in r.plan.victims}
        going: list[PodState] = []
        for victim in plan.victims:
            state = self.book.pods.get(victim.uid)
            if state is None or not state.seen_bound or state.grant_id != victim.grant_id:
                return f"{victim.namespace}/{victim.name} does not have that grant any more"
            if victim.uid in giving:
                return f"{state.key} gives way in another plan already"
            if is_suspension(victim) and not can_suspend(
                suspension_by(victim, "").action, self.book.grants[state.grant_id].given.containers.values()
            ):
                return f"{state.key} cannot {victim.action}: its slices are not of a kind that can"
            going.append(state)
        self._preemption_policy.begin()
        return self._refuses(plan, waiting, going)

    def _refuses(self, plan: Plan, waiting: list[PodState], going: list[PodState]) -> str:
        if plan.consolidates:
            return consolidating.refuses(
                plan, waiting, going, self._preemption_policy.is_non_borrowing, self._gangs.can_spare
            ) or self._preemption_policy.quota_exceeded(waiting, [])
        stay = {victim.uid for victim in plan.victims if is_suspension(victim)}
        gone = [state for state in going if state.uid not in stay]
        return self._preemption_policy.refuses(waiting, going, stay=stay) or self._preemption_policy.quota_exceeded(
            waiting, gone
        )

    def _needed(self, plan: Plan, waiting: list[PodState]) -> str:
        """Nobody is taken who need not go: neither one alone, where the rest of its gang may stay, nor a gang as a whole."""
        everyone = {victim.uid for victim in plan.victims}
        units = [{victim.uid} for victim in plan.victims]
        gangs = [gang.known & everyone for gang in self._gangs.among(everyone)]
        for stays in (*units, *gangs):
            if self._would_let(plan, waiting, everyone - stays) and self._try(plan, everyone - stays) is not None:
                spared = ", ".join(f"{v.namespace}/{v.name}" for v in plan.victims if v.uid in stays)
                return f"{waiting[0].key} would fit without {spared} giving way"
        return ""

    def _would_let(self, plan: Plan, waiting: list[PodState], uids: set[str]) -> bool:
        return not self._refuses(plan, waiting, [self.book.pods[uid] for uid in sorted(uids)])

    def _try(self, plan: Plan, gone: set[str]) -> dict[str, HeldPlace] | None:
        """The places of all beneficiaries on their nodes if these pods were gone; None where one has none. Of those who move too,
        where there is one; nobody moves for an equal without."""
        trial = Trial(self._engine)
        for victim in plan.victims:
            if victim.uid in gone and is_suspension(victim):
                trial.book.suspend(victim.grant_id, suspension_by(victim, plan.plan_id))
            elif victim.uid in gone:
                trial.book.lift(victim.uid)
        places = {}
        for beneficiary in plan.beneficiaries:
            if beneficiary.node not in trial.book.nodes:
                return None
            state = trial.book.add(self.book.pods[beneficiary.uid])
            place = trial.place_on(state, beneficiary.node)
            if place is None:
                return None
            places[beneficiary.uid] = HeldPlace(node=place.node, grant=trial.grant(state, place))
        for victim in [v for v in plan.victims if v.to and v.uid in gone]:
            place = trial.place_on(trial.book.pods[victim.uid], victim.to) if victim.to in trial.book.nodes else None
            if place is None and plan.consolidates:
                return None
            if place is not None:
                places[victim.uid] = HeldPlace(node=place.node, grant=trial.grant(trial.book.pods[victim.uid], place))
        return places

    def _keep(self, plan: Plan, places: dict[str, HeldPlace], now: float) -> Reservation:
        shadows = []
        for victim in [v for v in plan.victims if v.uid in places]:
            self._migrations.keep(victim, places[victim.uid], plan.plan_id, now + plan.deadline_s)
        for uid in [b.uid for b in plan.beneficiaries]:
            place, state = places[uid], self.book.pods[uid]
            shadow = state.shadow(f"reserved/{plan.plan_id}/{uid}")
            self.book.reserve(shadow, place.node, place.grant)
            shadows.append(shadow)
            gang = self._gangs.of(uid)
            if gang is not None:
                gang.kept[uid] = place.node
        kept = self[plan.plan_id] = Reservation(plan, places, shadows, now, now + plan.deadline_s)
        return kept


def _without_place(plan: Plan, places: dict[str, HeldPlace]) -> Plan:
    """Who was to move, and has no place by all that placement knows, ends without one: more important pods do not wait for that."""
    victims = tuple(
        v if not v.to or v.uid in places else msgspec.structs.replace(v, action="evict", to="") for v in plan.victims
    )
    return plan if victims == plan.victims else msgspec.structs.replace(plan, victims=victims)
