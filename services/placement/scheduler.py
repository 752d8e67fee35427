"""The waiting pods: which may be placed, which is tried next, and what happens to those that do not fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from services.placement import messages as m
from services.placement.engine.engine import Engine, Place
from services.placement.engine.remote import RemotePlaces
from services.placement.engine.shape import INFEASIBLE
from services.placement.scheduling.backfill.reservations import Backfill
from services.placement.scheduling.fair.fair import Fair
from services.placement.scheduling.fair.group_requests import GroupRequests
from services.placement.scheduling.gangs.domains import may_fit
from services.placement.scheduling.gangs.messages import shared_claim
from services.placement.scheduling.gangs.placing import Misfit, Placed, Tried, by_size, place_gang
from services.placement.scheduling.grants import Grants, TrialGrants
from services.placement.scheduling.late_claims import Kept, LateClaims
from services.placement.scheduling.queue import Queue
from services.placement.scheduling.unplaced import Unplaced
from services.placement.scheduling.unsupported_fields import refusal
from services.placement.stats import Stats
from shared.book.arrays import Bools, both
from shared.book.book import Book
from shared.book.gangs import Gangs, GangState
from shared.book.states import PodState
from shared.contracts.explain import Reason
from shared.model.claims import CLAIM_COMING
from shared.model.objects import Gang
from shared.queues.turns import TurnPolicy
from shared.scheduling.transaction import Transaction

_TIMINGS_KEPT = 20_000
_CLAIMS_PAUSE_S = 0.2
"""A node's volumes are bound within milliseconds. The pause keeps a burst of other changes from retrying the pod each
time."""
_RESERVED_PAUSE_S = 10.0
"""Begins anew at each input while a place is reserved for the pod and its volumes are made there."""
_OVERDUE_PAUSE_S = 60.0
"""For how long others may have the place of a pod after its volumes were not made in time."""


class Scheduler:
    """Queues pods, tries them, and notes those that do not fit. `stopwatch` returns seconds. Only metrics use it; no
    decision does."""

    def __init__(
        self,
        book: Book,
        engine: Engine,
        fair: Fair,
        gangs: Gangs,
        *,
        queue: Queue,
        requests: GroupRequests,
        unplaced: Unplaced,
        late_claims: LateClaims,
        remote: RemotePlaces,
        backfill: Backfill,
        stats: Stats,
        stopwatch: Callable[[], float],
    ) -> None:
        self._book, self._engine, self._fair, self._gangs, self._queue = book, engine, fair, gangs, queue
        self._requests, self._unplaced, self.late_claims, self._stats = requests, unplaced, late_claims, stats
        self._remote, self._stopwatch, self._backfill = remote, stopwatch, backfill
        self._turns = TurnPolicy(fair, gangs)
        self.decide_us: deque[float] = deque(maxlen=_TIMINGS_KEPT)
        self.first_seen: dict[str, float] = {}
        """When each waiting pod was first seen, by uid."""
        self._full: set[bytes] = set()
        """Shapes that found no room since the last change: equivalence groups of other queues skip them."""
        self._awaiting: dict[str, None] = {}
        """Pods that did not fit and that wait, perhaps, for other pods on nodes; of a gang its head."""
        self._is_beside_changed = False
        """Whether a pod has come to a node, or changed there, since these were last looked at."""
        self._behind: list[str] = []
        """Pods that were put into a group that waits, while capacity is reserved."""

    def policy_changed(self, now: float) -> list[m.Command]:
        """Reads the ConfigMap with the queues again. If it has changed, all waiting pods are queued again."""
        event = self._fair.read()
        if event is None:
            return []
        self._full.clear()
        for uid in self._queue.leave():
            if uid in self._book.pods:  # else a snapshot had both, the new policy and the end of the pod
                self.admit(self._book.pods[uid], now)
        return [m.Publish(event, namespace=event.namespace)]

    def admit(self, state: PodState, now: float) -> None:
        """Queues, dequeues or refuses a pod that is new or has changed, is unbound and has no hold."""
        self._unplaced.refused.pop(state.uid, None)
        if not state.wants_place:
            self._queue.remove(state.uid)
            self.late_claims.forget(state.uid)
            self.note(state, now)
            return
        self.first_seen.setdefault(state.uid, now)
        state.takes_turns = self._turns.allows(state)
        why = refusal(state)
        if why is not None:
            self._queue.remove(state.uid)
            self.note(state, now)
            if why.code != CLAIM_COMING:
                self._unplaced.refuse(state.uid, why)
            return
        gang = self._gangs.see(state, now)
        if gang is not None:
            self._queue.add_to_gang(state, gang.key, spare=gang.spare)
            self._turn(gang, now)
        elif source := self._gangs.unknown_source(state):
            self._queue.add_to_gang(state, f"? {state.pod.metadata.namespace}/{source}")
            self._queue.mark_unschedulable(state.uid, now)
        else:
            self._queue.add(state, self._group_key(state), plain=self._engine.is_plain(state))
            if self._backfill.kept and self._queue.is_unschedulable(state.uid):
                self._behind.append(state.uid)
        if self._queue.is_unschedulable(state.uid) and gang is None:
            # Its equivalence group waits, so it is not tried; it still gets a reason.
            self._unplaced.note_behind((state.uid,))

    def note(self, state: PodState, now: float) -> None:
        """Updates the gang of a pod that needs no place from Kerf, or has one."""
        before = self._gangs.of(state.uid)
        gang = self._gangs.see(state, now, able=refusal(state) is None)
        if gang is not None:
            self._turn(gang, now)
        if before is not None and before is not gang:
            self._turn(before, now)

    def mark_victims(self, uids: Sequence[str], now: float, *, going: bool) -> None:
        """Records that pods became victims of a plan, or are victims no longer: their gangs may change size."""
        (self._gangs.going.update if going else self._gangs.going.difference_update)(uids)
        for uid in uids:
            if uid in self._book.pods:
                self.note(self._book.pods[uid], now)

    def gang_changed(self, source: Gang, now: float) -> None:
        """Queues a gang's pods again: the object that sets its size was created, changed or deleted."""
        for uid in self._gangs.named_by(source):
            state = self._book.pods[uid]
            if state.uid in self._queue:
                self._queue.remove(uid)
                self.admit(state, now)
            else:
                self.note(state, now)

    def _turn(self, gang: GangState, now: float) -> None:
        """Makes a gang schedulable when its minimum is present, and when its need or choice changes."""
        if gang.spare != gang.satisfied:
            gang.spare = gang.satisfied
            # A snapshot ends several pods at once and reports them one by one: some of these may have left the book.
            for member in [u for u in gang.waiting if u in self._queue and u in self._book.pods]:
                self._queue.add_to_gang(self._book.pods[member], gang.key, spare=gang.spare)
            gang.standing = None
        uid = next(iter(gang.waiting), None)
        if uid is None or uid not in self._queue:
            return
        standing = (gang.need, len(gang.waiting), gang.tree) if gang.gathered else None
        if not gang.gathered:
            self._queue.mark_unschedulable(uid, now)
        elif standing != gang.standing:
            self._queue.mark_schedulable(uid)
        gang.standing = standing

    def forget(self, uid: str, now: float) -> None:
        """Drops a pod that was bound or is gone."""
        self._queue.remove(uid, forget=True)
        self._engine.forget(uid)
        self._unplaced.forget(uid)
        self.late_claims.forget(uid)
        self.first_seen.pop(uid, None)
        self._awaiting.pop(uid, None)
        state = self._book.pods.get(uid)
        if state is not None:
            self.note(state, now)
        elif (gang := self._gangs.forget(uid, now)) is not None:
            self._turn(gang, now)
            if not gang.known:
                self._unplaced.forget_gang(gang.key)

    def wake(self) -> None:
        """Makes pods schedulable again that a change of the book may have helped."""
        self._unplaced.changed = True
        self._fair.look_around()
        self._full.clear()
        self._is_beside_changed = False
        self._queue.wake(self._helper(), in_order=bool(self._backfill.kept))
        self._backfill.show_all()

    def tick(self, now: float) -> None:
        """Gives back the places of pods for which the volumes were not made in time."""
        for uid in self.late_claims.tick(now):
            self._queue.pause_for(uid, now, _OVERDUE_PAUSE_S)

    def pause(self, uids: Sequence[str], now: float) -> None:
        """Their places are reserved, and they are tried nowhere else for a while."""
        for uid in uids:
            self._queue.pause_for(uid, now, _RESERVED_PAUSE_S)

    def beside_changed(self) -> None:
        """A pod has come to a node, or counts otherwise there for the affinity and the spread of others."""
        self._is_beside_changed = True

    def wake_beside(self) -> None:
        """Makes pods schedulable again that such a pod may have helped. How often each of them is tried is bounded by
        its own pause."""
        if not self._is_beside_changed:
            return
        self._is_beside_changed = False
        helped = self._helper()
        for uid in list(self._awaiting):
            if not self._queue.is_unschedulable(uid):
                del self._awaiting[uid]
            elif helped(uid):
                del self._awaiting[uid]
                self._queue.mark_schedulable(uid)
        self._backfill.show_all()

    def _helper(self) -> Callable[[str], bool]:
        """Returns whether there may be room for a pod now, by its uid, beside what is reserved. It shows what is
        reserved for others."""
        rooms: dict[tuple[str, ...], dict[object, bool]] = {}

        def helped(uid: str) -> bool:
            self._backfill.show_to(uid)
            return self._helped(uid, rooms.setdefault(self._backfill.shown, {}))

        return helped

    def _helped(self, uid: str, room: dict[object, bool]) -> bool:
        """`room`: by shape, whether there is room, as far as shapes were examined, beside what is reserved."""
        state, gang = self._book.pods[uid], self._gangs.of(uid)
        if self.late_claims.node_of(uid):
            return True  # it has its place, and waits for its volumes alone
        if gang is not None:
            helped = may_fit(gang, [self._book.pods[u] for u in gang.waiting], self._engine, room)
        else:
            key = self._engine.key_of(state)
            if key not in room:
                remote = state.request is not None and state.request.remote is not None
                room[key] = int(self._engine.row(state).refresh().max(initial=INFEASIBLE)) > INFEASIBLE or (
                    remote and self._remote.decide(state) is not None
                )
            helped = room[key] and not self._gangs.unknown_source(state)
        return helped and self._requests.quota_exceeded(uid, self._queue.group_with) is None

    def waited_ms(self, uid: str, now: float) -> int:
        return round((now - self.first_seen.get(uid, now)) * 1000)

    def begin_turn(self) -> None:
        """Before the first attempt in a row, when all that has changed is known. A group whose first pod is kept off
        reserved capacity may have got a more important one, which is not."""
        behind, self._behind = self._behind, []
        for uid in behind:
            if uid in self._queue and not self._backfill.against(uid):
                self._queue.mark_schedulable(uid)

    def show_all(self) -> None:
        """After the last attempt in a row: the book is as it is, without what is reserved for the head of the queue."""
        self._backfill.show_all()

    def _group_key(self, state: PodState) -> bytes:
        """Its equivalence group's. A pod that ends by itself may fit where others of its shape are kept off."""
        key, deadline_s = self._engine.key_of(state), state.pod.spec.active_deadline_seconds
        return key if deadline_s is None or not self._backfill.enabled else b"%s ends in %d" % (key, deadline_s)

    def attempt(self, state: PodState, now: float) -> tuple[Place | None, list[m.Command]]:
        """Tries one pod. With a place it leaves the queue; without one, its equivalence group waits for a change."""
        kept = self.late_claims.take_off(state.uid)
        if self._engine.key_of(state) in self._full or self._fair.quota_exceeded((state,)) is not None:
            self.late_claims.lost(kept)
            self._no_place(state, now, alone=False)
            return None, []
        self._backfill.show_to(state.uid)
        within = self._fair.rows_within(state)
        began = self._stopwatch()
        place = self._decide_at(state, kept, within) or self._engine.decide(state, within)
        if place is None and state.request is not None and state.request.remote is not None:
            place = self._remote.decide(state, within)
        everything = within is None and not self._backfill.shown
        if place is None and everything and self._fair.tree is not None and self._engine.is_plain(state):
            self._full.add(self._engine.key_of(state))
        elif place is not None and self._fair.quota_exceeded_on(state, place.containers) is not None:
            place = None
        self.decide_us.append((self._stopwatch() - began) * 1e6)
        self._engine.meet(state, placed=place is not None)
        if place is None:
            self.late_claims.lost(kept)
            self._no_place(state, now, alone=not self._engine.is_plain(state))
            return None, []
        if (late := self.await_volumes(state, place, now, kept)) is not None:
            return None, late
        self._queue.remove(state.uid)
        return place, []

    def await_volumes(
        self, state: PodState, place: Place, now: float, before: Kept | None = None
    ) -> list[m.Command] | None:
        """Keeps the place of a pod with volumes that bind late and need the node first: it is tried again when its
        claims are bound. None: it has no such volumes. `before`: the place that was kept so far."""
        late = self.late_claims.order([(state.uid, place.node)], now)
        if late is not None:
            self.late_claims.keep(state, place.node, TrialGrants.grant(state, place), now, before)
            if self._gangs.of(state.uid) is None:
                self._queue.add(state, self._group_key(state), plain=False)
                self._queue.mark_unschedulable(state.uid, now)
            self._queue.pause_for(state.uid, now, _CLAIMS_PAUSE_S)
        return late

    def _decide_at(self, state: PodState, kept: Kept | None, within: Bools | None) -> Place | None:
        """The pod's place at the node where one was kept for it, if it still fits there."""
        if kept is None or kept.node not in self._book.nodes:
            return None
        return self._engine.decide(state, both(self._engine.only(kept.node), within))

    def attempt_gang(
        self, gang: GangState, uid: str, now: float, grants: Grants, transaction: Transaction
    ) -> tuple[Tried, list[m.Command]]:
        """Tries the gang that `uid` heads. Members that get a place hold it in the transaction and leave the queue. If
        too few would get one, none does, and the group waits for a change."""
        group = self._queue.group_with(uid)
        able = [self._book.pods[u] for u in group if not self._queue.paused(u, now)]
        if not gang.gathered:
            self._queue.mark_unschedulable(uid, now)
            return Tried([]), []
        need = len(gang.together([state.uid for state in able]))
        if not need:
            self._queue.pause(uid, now)  # another member is paused, for its Binding was refused
            return Tried([]), []
        kept = {member: self.late_claims.take_off(member) for member in group}
        began = self._stopwatch()
        self._backfill.show_to(uid)
        gang.problem = shared_claim(able)
        if gang.problem or self._fair.quota_exceeded(able, need) is not None:
            self.late_claims.lost(*kept.values())
            self._gang_waits(gang, group, now, Misfit(fitted=0, uid=""))
            return Tried([]), []
        tried = self._place_gang(gang, able, grants, transaction, bounded=True)
        if tried.misfit is not None and any(self._fair.rows_within(one, need) is not None for one in able):
            # Anywhere: what speaks against that is the reason.
            tried = self._place_gang(gang, able, grants, transaction, bounded=False)
        self.decide_us.append((self._stopwatch() - began) * 1e6 / need)
        for state in able if tried.misfit is not None else [one.state for one in tried.placed]:
            self._engine.meet(state, placed=tried.misfit is None)
        if tried.misfit is not None:
            self.late_claims.lost(*kept.values())
            self._gang_waits(gang, group, now, tried.misfit)
            return tried, []
        late = self.late_claims.order([(one.state.uid, one.place.node) for one in tried.placed], now)
        if late is not None:
            transaction.roll_back()
            for one in tried.placed:
                grant = TrialGrants.grant(one.state, one.place)
                self.late_claims.keep(one.state, one.place.node, grant, now, kept[one.state.uid])
            self._queue.pause_for(uid, now, _CLAIMS_PAUSE_S)
            return Tried([]), late
        chosen = {one.state.uid for one in tried.placed}
        for member in group:
            if member in chosen:
                self._queue.remove(member)
        return tried, []

    def _place_gang(
        self, gang: GangState, able: list[PodState], grants: Grants, transaction: Transaction, *, bounded: bool
    ) -> Tried:
        """`bounded`: only on GPUs on which all members are within their queue's limits."""
        within = self._fair.rows_within if bounded else None
        tried = place_gang(gang, by_size(able), self._engine, grants, transaction=transaction, within=within)
        gang.quota_reason = self._fair.exceeded([one.state for one in tried.placed])
        if gang.quota_reason is None:
            return tried
        transaction.roll_back()
        return Tried([], misfit=Misfit(fitted=0, uid=able[0].uid))

    def gang_refused(self, gang: GangState, placed: list[Placed], why: Reason, now: float) -> None:
        """Queues the members again: they got places that cannot be committed."""
        for one in placed:
            self._queue.add_to_gang(one.state, gang.key, spare=gang.spare)
        gang.problem = why
        self._gang_waits(gang, self._queue.group_with(placed[0].state.uid), now, None)

    def _gang_waits(self, gang: GangState, group: list[str], now: float, misfit: Misfit | None) -> None:
        self._stats.rejections += 1
        self._queue.mark_unschedulable(group[0], now)
        if misfit is None or misfit.uid:
            # An attempt costs as much as one of each member; a gang that is too large by numbers alone costs little.
            self._queue.pause(group[0], now)
        gang.verdict = None
        if any(self._book.pods[uid].awaits_pods for uid in group):
            self._awaiting[group[0]] = None
        for uid in group:
            self._unplaced.note(uid)

    def _no_place(self, state: PodState, now: float, *, alone: bool) -> None:
        self._stats.rejections += 1
        if alone:
            self._queue.add(state, self._group_key(state), plain=False)
        self._queue.mark_unschedulable(state.uid, now)
        self._unplaced.note(state.uid)
        self._unplaced.note_behind(self._queue.take_new(state.uid))
        if state.awaits_pods:
            self._awaiting[state.uid] = None
