"""Checks plans of the preemptor against the book and reserves the places of their beneficiaries.

What a plan reserves is booked in addition to what its victims still have, so capacity that they return belongs to the
reservation alone. When all victims have returned theirs, the beneficiaries are placed on the plan's nodes by a normal
decision. A reservation that is not logged is not executed. Its end is logged only after the decisions that follow
from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from services.placement.engine.engine import Engine
from services.placement.preemption import consolidation as consolidating
from services.placement.preemption.migration import Migrations
from services.placement.preemption.quick_look import look_at
from services.placement.preemption.reservation import Reservation, can_be_beside, leave_to
from services.placement.preemption.turns import Turns
from services.placement.protocol.suspension import Suspender, is_suspension, suspension_by
from services.placement.protocol.write_batcher import RECORD_MOST_BYTES
from services.placement.scheduling.grants import TrialGrants
from services.placement.scheduling.trial import Trial
from shared.book import host_memory
from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.book.levels import topology_violation
from shared.book.states import PodState
from shared.contracts.base import encode
from shared.contracts.log import ReservationRecord
from shared.contracts.preemption import Beneficiary, HeldPlace, Plan, Reserved, Victim
from shared.model.life import STUCK_S, grace_s
from shared.model.suspension import can_suspend
from shared.queues.preemption_policy import PreemptionPolicy
from shared.scheduling.minimal_sets import first_unneeded


class Reservations(dict[str, Reservation]):
    """The open reservations by plan id."""

    def __init__(
        self,
        engine: Engine,
        gangs: Gangs,
        preemption_policy: PreemptionPolicy,
        suspension: Suspender,
        moves: Migrations,
        *,
        turns: Turns,
    ) -> None:
        super().__init__()
        self._engine, self._gangs, self._preemption_policy, self._suspender, self._migrations = (
            engine,
            gangs,
            preemption_policy,
            suspension,
            moves,
        )
        self.turns = turns

    @property
    def book(self) -> Book:
        return self._engine.book

    @property
    def beneficiaries(self) -> set[str]:
        """The uids of all pods for which plans reserve places."""
        return {beneficiary.uid for reserved in self.values() for beneficiary in reserved.plan.beneficiaries}

    def refusal(self, plan: Plan, now: float) -> str:
        """Returns why a plan is refused; empty if it may be reserved."""
        states = [self.book.pods.get(b.uid) for b in plan.beneficiaries]
        for beneficiary, state in zip(plan.beneficiaries, states, strict=True):
            if beneficiary.resumes:
                continue
            if state is None or not state.wants_place or state.charged or state.refusal:
                return f"{beneficiary.namespace}/{beneficiary.name} is not pending"
            if state.excluded:  # a Binding of the past may still bind it with another grant
                return f"{state.key} cannot be updated, which it has to be before it is placed: {state.excluded}"
            if state.runs_on:
                return f"the containers of {state.key} still run on node {state.runs_on}"
            if state.never_preempts and not plan.turn:
                return f"{state.key} has preemptionPolicy Never"
        waiting = [state for state in states if state is not None]
        if not waiting or not plan.victims:
            return "a plan needs a pending pod and a victim"
        in_progress = [r for r in self.values() if not r.closing or r.placeholders]
        taken = {b.uid for r in in_progress for b in r.plan.beneficiaries} & {b.uid for b in plan.beneficiaries}
        taken |= {v.uid for r in self.values() for v in r.plan.victims} & {b.uid for b in plan.beneficiaries}
        alone = [r for r in in_progress if not (r.beside and can_be_beside(plan, self.book))]
        busy = {b.node for r in alone for b in r.plan.beneficiaries} & {b.node for b in plan.beneficiaries}
        if taken or busy:
            return f"another plan is in progress for {', '.join(sorted(taken or busy))}"
        return (
            self.turns.why_not_resumed(plan, states)
            or self._check_gang(waiting, plan)
            or self._check_victims(plan, waiting, now)
            or self._unneeded_victims(plan, waiting, now)
        )

    def reserve(self, plan: Plan, term: int, now: float) -> ReservationRecord | str:
        """Books the plan's places; returns the record to be logged, or why the plan is refused."""
        refused = self.refusal(plan, now)
        if refused:
            return refused
        places = self._try_plan(plan, plan.victims)
        if places is None:
            return "the beneficiaries would not fit even without the victims"
        for uid, place in places.items():
            if place.grant is not None:
                grant_id = f"reserved/{plan.plan_id}/{uid}"
                places[uid] = HeldPlace(
                    node=place.node, grant=msgspec.structs.replace(place.grant, grant_id=grant_id, term=term)
                )
        asked, plan = plan, _without_place(plan, places)
        over = "" if plan.turn else self._over_quota_on(plan, places)
        if over:
            return over
        size = len(encode(ReservationRecord(term=term, plan=plan, places=places)))
        if size > RECORD_MOST_BYTES:
            return f"the plan takes {size} bytes, and a log record holds at most {RECORD_MOST_BYTES}"
        kept = self._book_places(plan, places, now)
        kept.changed = plan != asked
        return kept.record(term)

    def readopt(self, record: ReservationRecord, now: float) -> Reservation | None:
        """Books a reservation of an earlier term again.

        Returns None if its beneficiaries are not pending any more.

        Its deadline starts again, because no clock outlives a leader.
        """
        waits = bool(record.places) and all(
            self._waits(b) and b.node in self.book.nodes for b in record.plan.beneficiaries
        )
        if waits and (not record.plan.beneficiaries[0].resumes or self.turns.still_suspended(record.plan)):
            kept = self._book_places(record.plan, record.places, now, adopted=True)
            kept.logged = True
            return kept
        return self.adopt_closing(record.plan, now)

    def adopt_closing(self, plan: Plan, now: float) -> Reservation | None:
        """Keeps the host memory for orders of an earlier leader that may still be written; None if there are none."""
        victims = [self.book.pods.get(v.uid) for v in plan.victims if v.action == "checkpoint"]
        may_be_written = [s for s in victims if s is not None and s.seen_bound and s.suspension is None]
        for state in may_be_written:
            self._suspender.host_memory.take(state.grant_id)
            self._suspender.host_memory.ordered(state)
        if not may_be_written:
            return None
        kept = self[plan.plan_id] = Reservation(plan, {}, [], now, now, logged=True, closing=True)
        return kept

    def no(self, plan: Plan, reason: str, under_way: Reservation | None = None) -> Reserved:
        """Refuses a plan, and says which of its victims it would be in vain to ask for again soon.

        `under_way`: what is reserved for its beneficiaries already.
        """
        known = self._suspender.host_memory.cannot_checkpoint
        cannot = tuple(v.uid for v in plan.victims if v.action == "checkpoint" and v.grant_id in known)
        stay = self._suspender.moves.cannot_move
        states = {b.uid: self.book.pods.get(b.uid) for b in plan.beneficiaries if b.gpus}
        own = tuple(uid for uid, state in states.items() if state is not None and state.grant_id in stay)
        return Reserved(
            plan_id=plan.plan_id,
            ok=False,
            reason=reason,
            under_way=None if under_way is None else under_way.plan,
            places={} if under_way is None else under_way.shown_places,
            cannot_suspend=cannot,
            cannot_move=own,
        )

    def of(self, plan: Plan) -> Reservation | None:
        """Returns what is already reserved for all beneficiaries of this plan, or for more."""
        wanted = {b.uid for b in plan.beneficiaries}
        return next(
            (
                r
                for r in self.values()
                if r.answered and not r.closing and wanted <= {b.uid for b in r.plan.beneficiaries}
            ),
            None,
        )

    def end(self, plan_id: str) -> Reservation | None:
        """Releases the reservation."""
        found = self.pop(plan_id, None)
        if found is not None:
            self.release_all(found)
            self._suspender.open_plans.pop(plan_id, None)
            self._suspender.reserved -= {b.uid for b in found.plan.beneficiaries}
        return found

    def release_all(self, found: Reservation) -> None:
        """Releases its places, and its gang for another plan."""
        for uid in [placeholder.kept_for for placeholder in found.placeholders]:
            self.release(found, uid)

    def release(self, found: Reservation, uid: str) -> None:
        """Releases the place of this beneficiary."""
        for placeholder in [p for p in found.placeholders if p.kept_for == uid]:
            self.book.unreserve(placeholder)
            found.placeholders.remove(placeholder)
        gang = self._gangs.of(uid)
        if gang is not None:
            gang.kept.pop(uid, None)

    def ready(self) -> list[Reservation]:
        """Returns the reservations whose victims have returned everything, on nodes that have synced."""
        return [
            r
            for r in self.values()
            if r.logged
            and not r.closing
            and all(self._has_given_up(victim, r.plan) for victim in r.plan.victims)
            and not any(self._is_in_trouble(b, r.places) for b in self._not_back(r))
            and self.turns.can_resume(r.plan)
        ]

    def _not_back(self, found: Reservation) -> list[Beneficiary]:
        """Its beneficiaries, once it resumes them without those that are back, or gone."""
        if not found.resuming:
            return list(found.plan.beneficiaries)
        left = {state.uid for state in self.turns.still_suspended(found.plan)}
        return [b for b in found.plan.beneficiaries if b.uid in left]

    def _has_given_up(self, victim: Victim, plan: Plan) -> bool:
        """Whether it has given up what the plan needs. One without GPUs, such as a gang's launcher, is waited for where
        its CPU is needed."""
        if victim.grant_id:
            return self._suspender.is_done(victim, plan.plan_id)
        state = self.book.pods.get(victim.uid)
        return state is None or state.ended or all(state.charged != b.node for b in plan.beneficiaries)

    def _is_in_trouble(self, beneficiary: Beneficiary, places: Mapping[str, HeldPlace]) -> bool:
        """Whether the node cannot be given to now. Without GPUs a pod needs no agent, and its node may have none."""
        node, place = self.book.nodes.get(beneficiary.node), places.get(beneficiary.uid)
        if node is None:
            return True
        needs_agent = beneficiary.resumes or (place is not None and place.grant is not None)
        return bool(node.agent_trouble) if needs_agent else node.object is None

    def obsolete(self, now: float) -> list[tuple[Reservation, str, tuple[str, ...]]]:
        """Returns the reservations that are obsolete or have exceeded their deadline, with the reason, and the uids of
        the victims that were not suspended by then."""
        found: list[tuple[Reservation, str, tuple[str, ...]]] = []
        for reservation in [r for r in self.values() if not r.closing]:
            lost = [b for b in reservation.plan.beneficiaries if not self._waits(b)]
            if reservation.resuming and len(lost) < len(reservation.plan.beneficiaries):
                # It ends when all that are left have resumed. One may never: its node is gone, or a webhook keeps its
                # annotation. What was ordered is repeated without the plan, and the others resume when there is room.
                if now >= reservation.until:
                    found.append((reservation, "not all of its beneficiaries have resumed", ()))
                continue
            if lost:
                found.append((reservation, f"{lost[0].namespace}/{lost[0].name} is not pending any more", ()))
            elif reservation.logged and reservation.until <= now and not self._all_end(reservation, now):
                volumes = "the volumes of its beneficiaries were not made"
                missing = volumes if reservation.awaits_volumes else "not all of its victims were gone"
                failed = tuple(
                    v.uid
                    for v in reservation.plan.victims
                    if is_suspension(v) and not self._has_given_up(v, reservation.plan)
                )
                found.append((reservation, f"{missing} after {round(now - reservation.since)} s", failed))
        return found

    def settled(self, found: Reservation) -> bool:
        """Whether none of its orders to checkpoint a victim may still be written."""
        return all(self._suspender.host_memory.settled(v.uid) for v in found.plan.victims if v.action == "checkpoint")

    def close(self, found: Reservation) -> None:
        """Gives a plan up whose orders may still be written: what they suspend resumes."""
        found.closing = True
        self._suspender.open_plans.pop(found.plan.plan_id, None)
        self._suspender.reserved -= {b.uid for b in found.plan.beneficiaries}

    def see_ends(self, now: float) -> None:
        """Notes which victims have been deleted, by the local clock: deletion timestamps are the API server's."""
        for reservation in self.values():
            for uid in [victim.uid for victim in reservation.plan.victims if victim.uid not in reservation.ending]:
                state = self.book.pods.get(uid)
                if state is not None and state.pod.metadata.deletion_timestamp is not None:
                    reservation.ending[uid] = now + grace_s(state.pod) + STUCK_S

    def _all_end(self, reservation: Reservation, now: float) -> bool:
        """Whether all remaining victims are within their grace period.

        Cancelling now would waste their evictions.
        """
        plan = reservation.plan
        left = [victim.uid for victim in plan.victims if not self._has_given_up(victim, plan)]
        return bool(left) and all(now < reservation.ending.get(uid, now) for uid in left)

    def beside(self, plan: Plan) -> list[Reservation]:
        """Returns the other open plans with places on its nodes."""
        nodes = {b.node for b in plan.beneficiaries}
        return [
            r
            for r in self.values()
            if r.plan.plan_id != plan.plan_id and any(p.charged in nodes for p in r.placeholders)
        ]

    def placeholders_beside(self, plan: Plan) -> list[PodState]:
        """Returns the placeholders that other plans have on its nodes."""
        nodes = {b.node for b in plan.beneficiaries}
        return [p for r in self.beside(plan) for p in r.placeholders if p.charged in nodes]

    def _waits(self, beneficiary: Beneficiary) -> bool:
        state = self.book.pods.get(beneficiary.uid)
        if beneficiary.resumes:  # one that runs again already, by the order of an earlier leader, waits for its gang
            return state is not None and state.seen_bound and not state.ended
        return (
            state is not None and state.wants_place and not state.charged and not state.excluded and not state.runs_on
        )

    def _check_gang(self, waiting: list[PodState], plan: Plan) -> str:
        if plan.beneficiaries[0].resumes:
            return ""
        gangs = {None if gang is None else gang.key for state in waiting for gang in (self._gangs.of(state.uid),)}
        if len(waiting) == 1 and gangs == {None}:
            return ""
        if len(gangs) > 1 or None in gangs:
            return "several beneficiaries must be members of one gang"
        gang = self._gangs.of(waiting[0].uid)
        if gang is None or not gang.together([state.uid for state in waiting]):
            name, need = ("", 0) if gang is None else (gang.name, gang.need)
            return f"gang {name} needs {need} places at once, the plan has {len(waiting)}"
        if gang.kept:
            return f"another plan is in progress for gang {gang.name}"
        return topology_violation(gang, {b.uid: b.node for b in plan.beneficiaries}, self.book)

    def _check_victims(self, plan: Plan, waiting: list[PodState], now: float) -> str:
        giving = {v.uid for r in self.values() for v in r.plan.victims}
        going: list[PodState] = []
        for victim in plan.victims:
            state = self.book.pods.get(victim.uid)
            if state is None or not state.seen_bound or state.grant_id != victim.grant_id:
                return f"{victim.namespace}/{victim.name} does not have that grant any more"
            if victim.uid in giving:
                return f"{state.key} is already a victim of another plan"
            if victim.uid in self._suspender.reserved:
                return f"{state.key} resumes by another plan"
            if is_suspension(victim) and not can_suspend(
                suspension_by(victim, "").action, self.book.grants[state.grant_id].given.containers.values()
            ):
                return f"{state.key} cannot {victim.action}: the strategy of its slices does not support it"
            why = self._suspender.host_memory.cannot_checkpoint.get(victim.grant_id)
            if victim.action == "checkpoint" and why:
                return f"{state.key} cannot be checkpointed, by its node's rehearsal: {why}"
            going.append(state)
        self._preemption_policy.begin()
        self._preemption_policy.note_leaving(giving)
        self.turns.begin()
        to_host = [self.book.grants[v.grant_id] for v in plan.victims if v.action == "checkpoint"]
        return self._refuses(plan, waiting, going, now) or host_memory.lacking(self.book, to_host)

    def _refuses(self, plan: Plan, waiting: list[PodState], going: list[PodState], now: float) -> str:
        if plan.turn:
            return self.turns.refuses(plan, waiting, going, now)
        if plan.consolidates:
            return consolidating.refuses(
                plan, waiting, going, self._preemption_policy.is_non_borrowing, self._gangs.can_spare
            ) or self._preemption_policy.quota_exceeded(waiting)
        stay = {victim.uid for victim in plan.victims if is_suspension(victim)}
        chosen = {state.uid for state in going}
        return self._preemption_policy.refuses(waiting, going, stay=stay) or self._preemption_policy.quota_exceeded(
            waiting, _for_good(plan) & chosen
        )

    def _over_quota_on(self, plan: Plan, places: Mapping[str, HeldPlace]) -> str:
        """Which quota the beneficiaries would exceed by the GPUs that they are to get."""
        pods = [(self.book.pods[b.uid], places[b.uid].grant) for b in plan.beneficiaries]
        placed = [(state, grant) for state, grant in pods if grant is not None]
        return self._preemption_policy.quota_exceeded_on(placed, _for_good(plan))

    def _unneeded_victims(self, plan: Plan, waiting: list[PodState], now: float) -> str:
        """Returns which victims are unnecessary, single pods, gangs or subgroups; empty if all are needed."""
        everyone = {victim.uid for victim in plan.victims}
        units = [{victim.uid} for victim in plan.victims]
        gangs = self._gangs.together_among(everyone)
        if plan.turn:  # a gang yields as a whole, so that none of its pods is unneeded by itself
            units = [unit for unit in units if not any(unit < gang for gang in gangs)]

        quick = look_at(plan, self._engine, self.beside(plan)) if len(units) > 1 else None

        def is_enough(victims: Sequence[Victim]) -> bool:
            if quick is not None and not quick.might_fit_beside(everyone - {victim.uid for victim in victims}):
                return False
            return self._would_let(plan, waiting, victims, now) and self._try_plan(plan, victims) is not None

        stays = first_unneeded(plan.victims, (*units, *gangs), is_enough)
        if stays is None:
            return ""
        unneeded = ", ".join(f"{v.namespace}/{v.name}" for v in plan.victims if v.uid in stays)
        return f"{waiting[0].key} would fit without preempting {unneeded}"

    def _would_let(self, plan: Plan, waiting: list[PodState], victims: Sequence[Victim], now: float) -> bool:
        return not self._refuses(plan, waiting, [self.book.pods[uid] for uid in sorted(v.uid for v in victims)], now)

    def _try_plan(self, plan: Plan, victims: Sequence[Victim]) -> dict[str, HeldPlace] | None:
        """Returns the places of all beneficiaries if these victims were gone; None if one does not fit.

        Includes the places of migrated pods that fit elsewhere. In a consolidation plan all of them must.
        """
        trial = Trial(self._engine)
        leave_to(self.beside(plan), trial.book)
        for victim in victims:
            if is_suspension(victim):
                trial.transaction.suspend(victim.grant_id, suspension_by(victim, plan.plan_id))
            else:
                trial.transaction.lift(victim.uid)
        places = {}
        for beneficiary in plan.beneficiaries:
            if beneficiary.node not in trial.book.nodes:
                return None
            if beneficiary.resumes:
                back = self.turns.resume_on(trial.transaction, beneficiary)
                if back is None:
                    return None
                places[beneficiary.uid] = back
                continue
            state = trial.book.add(self.book.pods[beneficiary.uid])
            place = trial.place_on(state, beneficiary.node)
            if place is None:
                return None
            places[beneficiary.uid] = HeldPlace(node=place.node, grant=TrialGrants.grant(state, place))
        for victim in [v for v in victims if v.to]:
            place = trial.place_on(trial.book.pods[victim.uid], victim.to) if victim.to in trial.book.nodes else None
            if place is None and plan.consolidates:
                return None
            if place is not None:
                grant = TrialGrants.grant(trial.book.pods[victim.uid], place)
                places[victim.uid] = HeldPlace(node=place.node, grant=grant)
        return places

    def _book_places(
        self, plan: Plan, places: dict[str, HeldPlace], now: float, *, adopted: bool = False
    ) -> Reservation:
        placeholders = []
        for victim in [v for v in plan.victims if v.uid in places]:
            self._migrations.keep(victim, places[victim.uid], plan.plan_id, now + plan.deadline_s)
        self._suspender.open_plans[plan.plan_id] = plan
        self._suspender.reserved |= {b.uid for b in plan.beneficiaries if b.resumes}
        for victim in [v for v in plan.victims if v.action == "checkpoint"]:
            self._suspender.host_memory.take(victim.grant_id)
            if adopted and victim.uid in self.book.pods:
                # The order of an earlier leader may still be written.
                self._suspender.host_memory.ordered(self.book.pods[victim.uid])
        for beneficiary in plan.beneficiaries:
            uid = beneficiary.uid
            place, state, kept_as = places[uid], self.book.pods[uid], f"reserved/{plan.plan_id}/{uid}"
            if beneficiary.resumes and (state.suspension is None or uid in self._suspender.moves):
                continue  # it has resumed before a leader died, or is to: it has all of it
            placeholder = self.turns.placeholder(state, kept_as) if beneficiary.resumes else state.placeholder(kept_as)
            self.book.reserve(placeholder, place.node, place.grant)
            placeholders.append(placeholder)
            gang = self._gangs.of(uid)
            if gang is not None and not beneficiary.resumes:
                gang.kept[uid] = place.node
        kept = self[plan.plan_id] = Reservation(
            plan, places, placeholders, now, now + plan.deadline_s, beside=can_be_beside(plan, self.book)
        )
        return kept


def _without_place(plan: Plan, places: dict[str, HeldPlace]) -> Plan:
    """Turns moves of victims that do not fit elsewhere into evictions.

    Pods of higher priority do not wait for them.
    """
    victims = tuple(
        v if not v.to or v.uid in places else msgspec.structs.replace(v, action="evict", to="") for v in plan.victims
    )
    return plan if victims == plan.victims else msgspec.structs.replace(plan, victims=victims)


def _for_good(plan: Plan) -> set[str]:
    """The victims that give up their queue's quota: those that are only suspended resume, and for those that move a
    place is kept."""
    return {victim.uid for victim in plan.victims if not is_suspension(victim) and not victim.to}
