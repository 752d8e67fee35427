"""Handles reservations within a leader session: request, log, execution, cancellation.

`reservations` books them.
"""

from __future__ import annotations

from functools import partial

import msgspec

from services.placement import messages as m
from services.placement.engine.engine import Engine
from services.placement.preemption.gang_holds import GangHolds
from services.placement.preemption.messages import preemption_cancelled, preemption_started, suspension_text
from services.placement.preemption.migration import Migrations
from services.placement.preemption.reservation import Reservation, leave_to
from services.placement.preemption.reservations import Reservations
from services.placement.preemption.turns import Turns
from services.placement.protocol.capacity_changes import CapacityChanges
from services.placement.protocol.commit import Committer
from services.placement.protocol.recovery import Recovery
from services.placement.protocol.suspension import REPEAT_S, Suspender, is_suspension
from services.placement.protocol.unix_time import UnixTime
from services.placement.protocol.write_batcher import WriteBatcher
from services.placement.scheduler import Scheduler
from services.placement.scheduling.fair.fair import Fair
from services.placement.scheduling.late_claims import KEPT_S
from shared.book.book import Book
from shared.book.fork import Fork
from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.contracts.events import Event, PreemptionAbandoned, PreemptionExecuted, PreemptionReserved
from shared.contracts.log import ReservationRecord
from shared.contracts.preemption import Plan, Reserved, Victim
from shared.queues.preemption_policy import PreemptionPolicy
from shared.queues.turns import TurnPolicy

RESUMED_WITHIN_S = 60.0
"""How long a plan lasts at most once its beneficiaries are ordered to resume."""


class Preemption:
    def __init__(
        self,
        committer: Committer,
        scheduler: Scheduler,
        book: Book,
        *,
        engine: Engine,
        gangs: Gangs,
        fair: Fair,
        batcher: WriteBatcher,
        suspension: Suspender,
        capacity_changes: CapacityChanges,
        turns: TurnPolicy,
        clock: UnixTime,
    ) -> None:
        self._committer, self._scheduler, self._book, self._fair = committer, scheduler, book, fair
        self._gangs = gangs
        self._batcher, self._suspender, self._capacity_changes = batcher, suspension, capacity_changes
        self.migrations = Migrations(committer, book, gangs, capacity_changes, scheduler.late_claims)
        self.turns = Turns(book, turns, suspension, clock)
        self.reservations = Reservations(
            engine, gangs, PreemptionPolicy(fair, gangs), suspension, self.migrations, turns=self.turns
        )
        self._holds = GangHolds(book, gangs)
        self._said_at = 0.0

    def reserve(self, plan: Plan, term: int, now: float) -> list[m.Command]:
        known = self.reservations.get(plan.plan_id)
        if known is not None:
            return [m.AnswerPlan(_yes(known))] if known.answered else []  # answered when it may be executed
        record = self.reservations.reserve(plan, term, now)
        if isinstance(record, str):
            return [m.AnswerPlan(self.reservations.no(plan, record, self.reservations.of(plan)))]
        self._batcher.reservations.append(record)
        # Not first when it is logged: of one gang each plan of one moment would count on the same member to spare.
        self._mark_victims(record.plan, now, going=True)
        return []

    def abandon(self, plan_id: str, reason: str, term: int, now: float) -> list[m.Command]:
        found = self.reservations.get(plan_id)
        return [
            *([] if found is None else self._give_up(found, reason, term, now)),
            m.AnswerPlan(Reserved(plan_id=plan_id, ok=True)),
        ]

    def advance(self, term: int, now: float) -> list[m.Command]:
        """Places the beneficiaries of plans whose capacity is free. Called before other pods are tried."""
        out = self.migrations.advance(now)
        for found, reason, failed in self.reservations.obsolete(now):
            out += self._give_up(found, reason, term, now, failed)
        for found in [r for r in self.reservations.values() if r.closing and self.reservations.settled(r)]:
            self.reservations.end(found.plan.plan_id)
            self._capacity_changes.note()
            out += self._over(found, term, [])
        for found in self.reservations.values():
            out += self._answer(found)
        for found in self.reservations.ready():
            plan = found.plan
            if plan.beneficiaries[0].resumes:
                out += self._resume(found, term, now)
                continue
            places, release = [(b.uid, b.node) for b in plan.beneficiaries], partial(self.reservations.release, found)
            late = self._scheduler.late_claims.order(places, now)
            if late is not None:
                out += late
                self._await_volumes(found, now)
                continue
            # By the checks of `reserve` there is room beside what the victims of other plans on its nodes still have.
            with self._book.without_room(self.reservations.placeholders_beside(plan)):
                placed = self._committer.take(places, now, release)
            self._end(found, now)
            if placed is None:
                out += self._over(
                    found, term, self._abandon(plan, "the victims were evicted, but the pod no longer fits on the node")
                )
                continue
            # Queued after its decisions, so its end is in the same log record, or in a later one.
            out += self._over(
                found, term, _publish(plan, PreemptionExecuted(plan=plan, took_ms=round((now - found.since) * 1000)))
            )
        return out

    def _await_volumes(self, found: Reservation, now: float) -> None:
        """Keeps the places as long as others that are kept for this. Meanwhile the pods are tried nowhere else."""
        if not found.awaits_volumes:
            found.awaits_volumes, found.until = True, now + KEPT_S
        self._scheduler.pause([b.uid for b in found.plan.beneficiaries], now)

    def _resume(self, found: Reservation, term: int, now: float) -> list[m.Command]:
        """Resumes the suspended beneficiaries of a plan together. The plan is over when all annotations are gone: a
        leader that dies before leaves it to its successor."""
        left = self.turns.still_suspended(found.plan)
        if left:
            found.until = found.until if found.resuming else max(found.until, now + RESUMED_WITHIN_S)
            found.resuming = True
            self.reservations.release_all(found)
            moved = {b.uid: b.gpus for b in found.plan.beneficiaries if b.gpus}
            return self._suspender.resume(left, moved, now)
        self._end(found, now)
        executed = PreemptionExecuted(plan=found.plan, took_ms=round((now - found.since) * 1000))
        return self._over(found, term, _publish(found.plan, executed))

    def suspension_refused(self, grant_id: str, reason: str, term: int, now: float) -> list[m.Command]:
        """Cancels the plan that depends on a suspension which the node of this grant cannot do."""
        for found in self.reservations.values():
            failed = tuple(v.uid for v in found.plan.victims if is_suspension(v) and v.grant_id == grant_id)
            if failed:
                why = f"the node of a victim cannot suspend it: {reason}"
                return self._give_up(found, why, term, now, failed)
        return []

    def _order(self, plan: Plan, term: int, now: float) -> list[m.Command]:
        """Orders the suspensions of a logged plan; those of a gang when all of its members stand still."""
        asked, ready = self._holds.ask(plan, term, now)
        return [*asked, *self._suspender.order(ready, now)]

    def hold_answered(self, event: m.HoldAnswered, term: int, now: float) -> list[m.Command]:
        """Handles what a node says about members of a gang that are to stand still together."""
        found = self.reservations.get(event.plan_id)
        out = self._holds.answered(event, term, now)
        if found is None or found.closing:
            return out
        reason, failed = self._holds.failure(found.plan)
        return [
            *out,
            *(self._give_up(found, reason, term, now, failed) if reason else self._order(found.plan, term, now)),
        ]

    def reservation_logged(self, record: ReservationRecord, now: float) -> list[m.Command]:
        found = self.reservations.get(record.plan.plan_id)
        if found is not None and found.closing and not record.places:
            self.reservations.release_all(found)
            self._capacity_changes.note()
        if found is None or found.logged or record.over:
            return []  # it is over already, or this is its repetition under another term
        plan, found.logged, found.until = found.plan, True, now + found.plan.deadline_s
        return [
            *self._order(plan, record.term, now),
            *self._answer(found),
            *_publish(plan, PreemptionReserved(plan=plan, term=record.term)),
            *preemption_started(plan, self._book),
        ]

    def _answer(self, found: Reservation) -> list[m.Command]:
        """Answers a logged plan when its suspensions are done; before that no victim is evicted.

        A node that cannot suspend a victim cancels the plan. Pods that were evicted before would have ended for
        nothing.
        """
        suspension = [victim for victim in found.plan.victims if is_suspension(victim)]
        waits = len(suspension) < len(found.plan.victims) and not all(
            self._suspender.is_done(victim, found.plan.plan_id) for victim in suspension
        )
        if found.answered or found.closing or not found.logged or waits:
            return []
        found.answered = True
        return [m.AnswerPlan(_yes(found))]

    def reserved_for(self, uid: str) -> Reservation | None:
        """Returns the reservation with a place for this pod."""
        of = (r for r in self.reservations.values() if any(b.uid == uid for b in r.plan.beneficiaries))
        return next((found for found in of if found.placeholders), None)

    def give_way(self, found: Reservation, book: Fork) -> None:
        """Lets the pods of a reservation have their places in `book`, beside what other plans on their nodes need."""
        leave_to(self.reservations.beside(found.plan), book)
        for placeholder in found.placeholders:
            book.unreserve(placeholder)

    def describe(self, uid: str) -> str:
        """Says how a pod is involved in a reserved plan; empty if it is not."""
        for found in self.reservations.values():
            plan = found.plan
            gains = ", ".join(f"{b.namespace}/{b.name}" for b in plan.beneficiaries)
            if any(victim.uid == uid for victim in plan.victims):
                return f"it is being preempted for {gains} (plan {plan.plan_id})"
            if any(b.uid == uid for b in plan.beneficiaries):
                if found.awaits_volumes:
                    return f"its place is kept while its volumes are made (plan {plan.plan_id})"
                gives = ", ".join(f"{v.namespace}/{v.name}" for v in plan.victims if self._is_there(v))
                return f"pods being preempted for it: {gives or 'none left'} (plan {plan.plan_id})"
        return ""

    def _is_there(self, victim: Victim) -> bool:
        """Whether it still has what it is to give. A gang's launcher has no grant."""
        if victim.grant_id:
            return victim.grant_id in self._book.grants
        state = self._book.pods.get(victim.uid)
        return state is not None and not state.ended

    def could_preempt(self, state: PodState) -> bool:
        """Whether running pods exist that this pod, or its gang, might preempt. Only the preemptor knows which ones."""
        if state.never_preempts or not self._gangs.needs_gpus(state):
            return False
        book, priority = self._book, state.pod.spec.priority
        others = (book.pods[held.uid] for held in book.grants.values() if held.uid in book.pods)
        return any(other.pod.spec.priority < priority or self._fair.tree is not None for other in others)

    def suspension_text(self, uid: str) -> str:
        """Describes what a pod has given up for a while; empty if nothing."""
        state, book = self._book.pods[uid], self._book
        held = book.grants.get(state.grant_id)
        return suspension_text(
            state,
            None if held is None else held.suspension,
            returns=self._suspender.returns(state),
            quota=self._suspender.quota_exceeded((state,)),
        )

    def tick(self, term: int, now: float) -> list[m.Command]:
        """Repeats suspension orders until they are confirmed, and resumes pods whose plan is over."""
        self.migrations.tick(now)
        self.reservations.see_ends(now)
        all_of_them = now - self._said_at >= REPEAT_S
        self._said_at = now if all_of_them else self._said_at
        orders: list[m.Command] = []
        for found in [r for r in self.reservations.values() if r.logged and not r.closing]:
            if all_of_them or self._holds.due(found.plan.plan_id, now):
                orders += self._order(found.plan, term, now)
        return [*orders, *self._suspender.tick(term, now)]

    def records(self, term: int) -> list[ReservationRecord]:
        """Returns the records that a new term has to write again."""
        return [found.record(term) for found in self.reservations.values() if found.logged]

    def readopt(self, recovery: Recovery, term: int, now: float, *, goes_on: bool = True) -> list[m.Command]:
        """Takes over the plans of the log; gives them up unless it `goes_on` with what the log says."""
        out: list[m.Command] = []
        for record in recovery.reserved():
            adopt = self.reservations
            kept = adopt.readopt(record, now) if goes_on else adopt.adopt_closing(record.plan, now)
            if kept is not None and not kept.closing:
                self._mark_victims(kept.plan, now, going=True)
            else:  # published, otherwise the preemptor would request its evictions again for nothing
                if kept is None:
                    self._batcher.reservations.append(msgspec.structs.replace(record, term=term, places={}, over=True))
                out += self._abandon(
                    record.plan, "a new leader found its beneficiaries placed or gone, or their nodes gone"
                )
        return out

    def _end(self, found: Reservation, now: float) -> None:
        self._holds.forget(found.plan.plan_id)
        self.reservations.end(found.plan.plan_id)
        self._mark_victims(found.plan, now, going=False)

    def _mark_victims(self, plan: Plan, now: float, *, going: bool) -> None:
        self._scheduler.mark_victims(
            [victim.uid for victim in plan.victims if not is_suspension(victim)], now, going=going
        )

    def _give_up(
        self, found: Reservation, reason: str, term: int, now: float, failed: tuple[str, ...] = ()
    ) -> list[m.Command]:
        """`failed`: the uids of victims that could not be suspended, if that is why."""
        if not self.reservations.settled(found):
            return self._close(found, reason, term, now, failed)
        held = self._holds.end(found.plan.plan_id, term)
        self._end(found, now)
        self._capacity_changes.note()
        self.migrations.release_unevicted([victim.uid for victim in found.plan.victims])
        answer = [] if found.answered else [m.AnswerPlan(self.reservations.no(found.plan, reason))]
        return [*held, *answer, *self._over(found, term, self._abandon(found.plan, reason, failed))]

    def _close(
        self, found: Reservation, reason: str, term: int, now: float, failed: tuple[str, ...] = ()
    ) -> list[m.Command]:
        if found.closing:
            return []
        held = self._holds.end(found.plan.plan_id, term)
        self.reservations.close(found)
        self._batcher.reservations.append(found.record(term))
        self._mark_victims(found.plan, now, going=False)
        self.migrations.release_unevicted([victim.uid for victim in found.plan.victims])
        answer = [] if found.answered else [m.AnswerPlan(self.reservations.no(found.plan, reason))]
        return [*held, *answer, *self._abandon(found.plan, reason, failed)]

    def _abandon(self, plan: Plan, reason: str, failed: tuple[str, ...] = ()) -> list[m.Command]:
        return [
            *_publish(plan, PreemptionAbandoned(plan=plan, reason=reason, failed=failed)),
            *preemption_cancelled(plan, reason, self._book),
        ]

    def _over(self, found: Reservation, term: int, said: list[m.Command]) -> list[m.Command]:
        self._batcher.reservations.append(found.record(term, over=True))
        return said


def _yes(found: Reservation) -> Reserved:
    return Reserved(
        plan_id=found.plan.plan_id,
        ok=True,
        places=found.shown_places,
        plan=found.plan if found.changed else None,
    )


def _publish(plan: Plan, event: Event) -> list[m.Command]:
    """Publishes an event once per namespace of a beneficiary or victim, in the trace of one of them."""
    return [m.Publish(event, namespace=namespace, uid=uid) for namespace, uid in plan.concerns().items()]
