"""Suspends pods, which give up part of what they have for a while, and resumes them.

The annotation is the desired state, the node's confirmation the actual state, and the book follows the node: other pods
get what a pod gives up only after its agent has confirmed it.

Resuming takes the opposite order. First the book counts all of the grant again, if there is capacity; then the
annotation is removed; then the agent is told. A leader that dies between two of these steps leaves the pod suspended
a little longer.

Each order to the API server is for one resourceVersion of the pod, and a new leader touches all suspended pods. Until
it has seen them at another version, no other pod gets what they gave up: an order of an earlier leader may still
arrive and end the suspension. `tests/model/suspension.py` shows that all of this is needed. A plan that a new leader
takes over orders the same suspension again, so an agent's answer counts only if it has met the last order about the
pod (`tests/model/turns.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from services.placement import messages as m
from services.placement.protocol.capacity_changes import CapacityChanges
from services.placement.protocol.gpu_times import GpuTimes
from services.placement.protocol.host_memory import HostMemory
from services.placement.protocol.moves import Moves, Places
from services.placement.protocol.nodes import Nodes
from services.placement.protocol.recovery import Recovery, touch
from services.placement.protocol.resumption_order import ResumptionOrder, Unit
from services.placement.protocol.suspension_events import SuspensionEvents
from services.placement.protocol.unix_time import UnixTime
from shared.book.book import Book
from shared.book.states import GrantState, PodState
from shared.contracts.commands import SuspendPod
from shared.contracts.node_commands import NodeSyncAnswer
from shared.contracts.preemption import Plan, Victim
from shared.model.grant import sum_shares
from shared.model.suspension import SUSPEND_ACTIONS, Suspension, encode_suspension
from shared.queues.preemption_policy import PreemptionPolicy
from shared.turns.gpu_time import GpuTime, encode_gpu_time

REPEAT_S = 5.0
FREE_FOR_S = 5.0
"""How long capacity must stay free before the pod that gave it up gets it back: pending pods come first."""


def is_suspension(victim: Victim) -> bool:
    return victim.action in SUSPEND_ACTIONS


def suspension_by(victim: Victim, plan_id: str) -> Suspension:
    if victim.action not in SUSPEND_ACTIONS:
        raise ValueError(f"{victim.action} suspends no pod")
    return Suspension(
        action=victim.action, plan_id=plan_id, compute_milli=victim.keeps_milli, memory_mib=victim.keeps_mib
    )


class Suspender:
    def __init__(
        self,
        book: Book,
        nodes: Nodes,
        preemption_policy: PreemptionPolicy,
        capacity_changes: CapacityChanges,
        *,
        order: ResumptionOrder,
        gpu_times: GpuTimes,
        clock: UnixTime,
        moves: Moves,
    ) -> None:
        self._book, self._nodes, self._preemption_policy, self._capacity_changes = (
            book,
            nodes,
            preemption_policy,
            capacity_changes,
        )
        self._order, self._gpu_times, self._clock = order, gpu_times, clock
        self.moves = moves
        self.events = SuspensionEvents(book, clock)
        self.host_memory = HostMemory(book, nodes, capacity_changes)
        self.open_plans: dict[str, Plan] = {}
        """The plans whose reservations are in force, by id."""
        self.reserved: set[str] = set()
        """By uid: suspended pods that resume by an open plan alone."""
        self._resumable: list[Unit] | None = None
        """In this turn of the committer: the pods that could be resumed; None until that is asked."""
        self._told_number: dict[str, int] = {}
        """By uid of suspended pods: the number of the order that told the agent."""
        self._told: dict[str, Suspension] = {}
        """What each pod's agent was told last, by uid."""
        self._stopped: dict[str, GpuTime] = {}
        """By uid of suspended pods: their GPU time as of then."""
        self._resuming: dict[str, float] = {}
        """By uid of pods whose annotation is being removed: when that was last ordered."""
        self._room_since: dict[str, float] = {}
        self._unmoved: dict[str, str] = {}
        """By uid of pods that were suspended when this leader began: their resourceVersion at that time."""
        self._said: dict[str, Suspension] = {}
        """What the nodes of `_unmoved` pods have confirmed meanwhile."""
        self._touched_at = 0.0
        self._doubted: dict[str, float] = {}
        """By uid of suspended pods that failed to be so after that had been confirmed: since when, or when their node
        was last ordered again."""

    # --- to suspend ------------------------------------------------------------------------------------------------

    def order(self, plan: Plan, now: float) -> list[m.Command]:
        """Returns the orders that suspend the victims of a logged plan."""
        orders = []
        for victim in plan.victims:
            state = self._book.pods.get(victim.uid)
            if is_suspension(victim) and state is not None and state.suspension != suspension_by(victim, plan.plan_id):
                suspension = suspension_by(victim, plan.plan_id)
                if suspension.action == "checkpoint":
                    self.host_memory.ordered(state)
                gpu_time = self._gpu_times.at_suspension(
                    state, suspension, now, turn_of=plan.gains if plan.turn else ""
                )
                orders.append(
                    _patch(state, encode_suspension(suspension), self._reason(plan, victim, state, now), gpu_time)
                )
        return [m.SendPatches(tuple(orders))] if orders else []

    def _reason(self, plan: Plan, victim: Victim, state: PodState, now: float) -> str:
        does = _DOES[victim.action]
        if plan.turn:
            does, then = self._gpu_times.at_its_end(does, state, now)
            return f"{does}: it is the turn of {plan.gains}{then} (plan {plan.plan_id})"
        because = self._preemption_policy.reason_for(self._book.pods.get(plan.beneficiaries[0].uid), state)
        return f"{does} for {plan.gains}, {because}; it resumes when there is capacity (plan {plan.plan_id})"

    def returns(self, state: PodState) -> bool:
        """Whether a pod is resuming: no other pod gets what it gave up, and its node may not know yet."""
        return state.uid in self._resuming

    def is_done(self, victim: Victim, plan_id: str) -> bool:
        """Whether the node has confirmed the suspension.

        A pod whose grant is released has given up everything.
        """
        held = self._book.grants.get(victim.grant_id)
        return held is None or (is_suspension(victim) and held.suspension == suspension_by(victim, plan_id))

    def adopt(self, recovery: Recovery, term: int, now: float) -> list[m.Command]:
        """Takes over the suspended pods of an earlier leader; their agents learn the annotations by the sync."""
        suspension = [s for s in self._book.pods.values() if s.suspension is not None and not s.ended]
        self._told = {state.uid: state.suspension for state in suspension if state.suspension is not None}
        self._stopped = {state.uid: state.gpu_time for state in suspension if state.gpu_time is not None}
        self._unmoved = {state.uid: state.pod.metadata.resource_version for state in suspension}
        self._touched_at = now
        self.moves.adopt(suspension, recovery)
        self._resuming = {state.uid: now for state in suspension if state.uid in self.moves}
        return [m.SendPatches(tuple(touch(state, term) for state in suspension))] if suspension else []

    def amended(self, state: PodState) -> None:
        """Handles a grant that was seen amended: a pod that moved has what was kept for it, and gives nothing up."""
        held = self._book.grants.get(state.grant_id)
        if held is not None and self.moves.landed(state, held) and state.suspension is None:
            self._book.suspend(held.grant_id, None)

    def annotation_seen(self, state: PodState, now: float) -> list[m.Command]:
        """Handles an annotation that was added, changed or removed: tells the agent.

        An annotation that was removed by a late order of an earlier leader is restored while other pods have what was
        given up.
        """
        said = self._moved(state, now)
        if self.moves.seen(state, self.reserved):
            self._resuming.pop(state.uid, None)
        held = self._book.grants.get(state.grant_id)
        if held is None or held.phase != "bound" or self._told.get(state.uid) == state.suspension:
            return said
        if state.suspension is None and held.suspension is not None and not self._fits((held,)):
            # It has not run since: what the resumption has written of its GPU time and its wait is void.
            restored, stopped = encode_suspension(held.suspension), self._stopped.get(state.uid)
            gpu_time = "" if stopped is None else encode_gpu_time(stopped)
            return [*said, m.SendPatches((_patch(state, restored, "other pods have what it gave up", gpu_time),))]
        if state.suspension is None:
            self._told.pop(state.uid, None)
            self._resuming.pop(state.uid, None)
            self._book.suspend(held.grant_id, None)
            held = self._book.grants[held.grant_id]
        else:
            self._told[state.uid] = state.suspension
            if state.gpu_time is not None:
                self._stopped[state.uid] = state.gpu_time
        orders = self._nodes.granted(held, now)
        self._told_number[state.uid] = max(c.grant.number for c in orders if isinstance(c, m.SendGrant))
        if state.suspension is None:
            self.host_memory.told(held, orders, now)
        return [*said, *orders]

    def node_answered(
        self, grant_id: str, suspension: Suspension | None, reason: str = "", *, number: int = 0, now: float = 0.0
    ) -> list[m.Command]:
        """Handles an agent's answer about a grant: what is given up now.

        `number`: that of the newest order which the agent had met; 0: it is one of an earlier version, or this is the
        answer to a sync.

        A late answer to another order is ignored. If the agent cannot do it, the order is withdrawn, and a plan that
        depends on it ends at its deadline. Where it has confirmed it before, other pods may have by now what the pod
        gave up: nothing is withdrawn, and the agent is ordered again until it confirms.
        """
        held = self._book.grants.get(grant_id)
        state = None if held is None else self._book.pods.get(held.uid)
        if held is None or state is None or state.suspension is None or state.uid in self._resuming:
            return []
        if suspension == state.suspension and state.uid in self._unmoved:
            self._said[state.uid] = suspension
        elif suspension == state.suspension and 0 < number < self._told_number.get(state.uid, 0):
            return []  # the same plan's order before it was withdrawn
        elif suspension == state.suspension:
            self._doubted.pop(state.uid, None)
            self._book.suspend(grant_id, state.suspension)
            self._capacity_changes.note()
            return self.events.confirmed(state, held, now)
        elif suspension is None and reason and self.is_confirmed(grant_id):
            self._doubted.setdefault(state.uid, now)
        elif suspension is None and reason:
            gpu_time = self._gpu_times.never_stopped(state, now)
            return [m.SendPatches((_patch(state, "", f"its node cannot do it: {reason}", gpu_time),))]
        return []

    def is_confirmed(self, grant_id: str) -> bool:
        """Whether the node has confirmed to this leader what the pod is to give up."""
        held = self._book.grants.get(grant_id)
        state = None if held is None else self._book.pods.get(held.uid)
        return held is not None and state is not None and None is not held.suspension == state.suspension

    def _order_doubted(self, now: float) -> list[m.Command]:
        """Orders again what failed after it had been confirmed."""
        out: list[m.Command] = []
        for uid, at in list(self._doubted.items()):
            state = self._book.pods.get(uid)
            if state is None or not self.is_confirmed(state.grant_id):
                del self._doubted[uid]
            elif now - at >= REPEAT_S:
                self._doubted[uid] = now
                out += self._nodes.granted(self._book.grants[state.grant_id], now)
        return out

    def memory_answered(self, event: m.GrantAcknowledged, now: float) -> list[m.Command]:
        """Handles what an agent's answer says of the memory on the host and on the GPU."""
        self.host_memory.answered(event, self._open_checkpoints())
        self.moves.rehearsed(event.grant_id, event.cannot_move)
        held = self._book.grants.get(event.grant_id)
        state = None if held is None else self._book.pods.get(held.uid)
        if held is None or state is None or state.suspension or event.suspension or not event.whole:
            return []
        is_newest = event.number >= self._told_number.get(state.uid, 0)
        return self.events.is_whole(state, held, now) if is_newest else []

    def _open_checkpoints(self) -> set[str]:
        return {v.grant_id for plan in self.open_plans.values() for v in plan.victims if v.action == "checkpoint"}

    def is_current(self, grant_id: str, suspension: Suspension | None) -> bool:
        """Whether an agent's confirmation is about the latest order; otherwise that order has to be repeated."""
        held = self._book.grants.get(grant_id)
        return held is None or suspension == self._told.get(held.uid)

    def _moved(self, state: PodState, now: float) -> list[m.Command]:
        """Notes that a pod has a new resourceVersion: orders of an earlier leader cannot succeed any more."""
        if self._unmoved.get(state.uid, state.pod.metadata.resource_version) == state.pod.metadata.resource_version:
            return []
        del self._unmoved[state.uid]
        return self.node_answered(state.grant_id, self._said.pop(state.uid, None), now=now)

    def synced(self, answer: NodeSyncAnswer, now: float) -> list[m.Command]:
        """Handles what a node tells a new leader about the suspension of its grants, and about their memory."""
        own = self._book.nodes[answer.node].grants
        said: list[m.Command] = []
        for grant_id in [grant_id for grant_id in answer.suspension if grant_id in own]:
            said += self.node_answered(grant_id, answer.suspension[grant_id], now=now)
        self.host_memory.synced(answer.node, answer.on_host, answer.cannot_checkpoint)
        self.moves.synced(answer)
        return said

    # --- to resume ----------------------------------------------------------------------------------------------

    def tick(self, term: int, now: float) -> list[m.Command]:
        """Resumes pods whose plan is over and whose capacity has been free for a while, in their order."""
        self._told = {uid: suspension for uid, suspension in self._told.items() if uid in self._book.pods}
        self._stopped = {uid: gpu_time for uid, gpu_time in self._stopped.items() if uid in self._told}
        self._told_number = {uid: number for uid, number in self._told_number.items() if uid in self._book.pods}
        self._resuming = {uid: at for uid, at in self._resuming.items() if uid in self._book.pods}
        self.events.forget_gone()
        # Most have no room, and only the others are put in order. None gains room by what is ordered here.
        units = [u for u in self._over(now) if any(s.uid in self._resuming for s in u) or self._has_room(u)]
        waiting = {state.uid for unit in units for state in unit}
        self._room_since = {uid: at for uid, at in self._room_since.items() if uid in waiting}
        orders = []
        for unit in self._order.sort(units, self._clock.at(now)):
            said = [self._resuming[state.uid] for state in unit if state.uid in self._resuming]
            if said:
                due = [s for s in unit if now - self._resuming.get(s.uid, -REPEAT_S) >= REPEAT_S]
                orders += [order for state in due for order in self._resume_again(state, now)]
            elif self._may_resume(unit, now):
                orders += self._resume_unit(unit, self._free_places(unit) or {}, now)
        return [
            *self._touch_again(term, now),
            *self._order_doubted(now),
            *self.moves.tick(self.reserved, now),
            *([m.SendPatches(tuple(orders))] if orders else []),
            *self.host_memory.tick(self._open_checkpoints(), term, now),
        ]

    def begin_turn(self) -> None:
        """Begins a turn of the committer."""
        self._resumable = None

    @property
    def has_resumable(self) -> bool:
        """Whether some suspended pod may resume in this turn; true until that is known."""
        return self._resumable is None or bool(self._resumable)

    def resume_before(self, waiter: PodState, now: float) -> list[m.Command]:
        """Resumes suspended pods before a pending pod is tried: those that it could not preempt, and whose turn comes
        before its own.

        Otherwise any pending pod, however low its priority, would keep pods suspended that have precedence.
        """
        if self._resumable is None:
            self._resumable = self._order.sort(filter(self._has_room, self._over(now)), self._clock.at(now))
            self._preemption_policy.begin()
        unix_s = self._clock.at(now)
        orders: list[SuspendPod] = []
        for unit in self._resumable:
            places = None if any(state.uid in self._resuming for state in unit) else self._free_places(unit)
            if places is not None and self._order.comes_before(unit, waiter, unix_s):
                orders += self._resume_unit(unit, places, now)
        return [m.SendPatches(tuple(orders))] if orders else []

    def resume(self, states: Sequence[PodState], places: Places, now: float) -> list[m.Command]:
        """Resumes the beneficiaries of a plan, all of them at once; repeated until their annotations are gone."""
        due = [s for s in states if now - self._resuming.get(s.uid, -REPEAT_S) >= REPEAT_S]
        orders = self._resume_unit(due, places, now)
        return [m.SendPatches(tuple(orders))] if orders else []

    def can_resume(self, state: PodState) -> bool:
        """Whether what the pod has given up is known: its node has confirmed it to this leader."""
        return state.uid not in self._unmoved and state.uid not in self._resuming and self.is_confirmed(state.grant_id)

    def quota_exceeded(self, unit: Sequence[PodState]) -> str:
        """Returns which quota these suspended pods would exceed if they resumed now; empty if none."""
        held = [(state, self._book.grants[state.grant_id]) for state in unit if state.grant_id in self._book.grants]
        return self._preemption_policy.quota_exceeded_by_resuming(held)

    def _over(self, now: float) -> list[Unit]:
        """Returns the pods that are suspended for no open plan and resume by none; those together that resume
        together."""
        suspension = (self._book.pods[uid] for uid in self._told if uid in self._book.pods and uid not in self._unmoved)
        found = [
            state
            for state in suspension
            if state.suspension is not None
            and not state.ended
            and state.suspension.plan_id not in self.open_plans
            and state.uid not in self.reserved
        ]
        return self._order.units(found, self._clock.at(now)) if found else []

    def _resume_unit(self, unit: Sequence[PodState], places: Places, now: float) -> list[SuspendPod]:
        """Books all that these pods gave up; returns the orders that may be sent at once. A pod that moves is ordered
        to when that is in the log."""
        orders = []
        for state in unit:
            before = self._resuming.get(state.uid)
            self._resuming[state.uid] = now
            moves = state.uid in self.moves
            if moves and not self.moves.is_void(state.uid):
                continue  # it is repeated there
            to = " on other GPUs of its node" if moves or state.uid in places else ""
            reason = f"all of its grant is free again{to}{self._gpu_times.so_far(state, now)}"
            patch = _patch(state, "", reason, self._gpu_times.at_resumption(state, now))
            if moves:
                self.moves.renew(state, patch)
            elif state.uid in places and before is None:
                self.moves.begin(state, places[state.uid], patch)
            else:
                self._book.suspend(state.grant_id, None)
                orders.append(patch)
        return orders

    def _resume_again(self, state: PodState, now: float) -> list[SuspendPod]:
        """Of a unit that resumes: a pod whose annotation is not gone yet, or whose move was void."""
        places = {} if state.uid in self._resuming else self._places([state])
        return [] if places is None else self._resume_unit([state], places, now)

    def _touch_again(self, term: int, now: float) -> list[m.Command]:
        self._unmoved = {uid: version for uid, version in self._unmoved.items() if uid in self._book.pods}
        if not self._unmoved or now - self._touched_at < REPEAT_S:
            return []
        self._touched_at = now
        return [m.SendPatches(tuple(touch(self._book.pods[uid], term) for uid in self._unmoved))]

    def _may_resume(self, unit: Unit, now: float) -> bool:
        if not self._has_room(unit):
            for state in unit:
                self._room_since.pop(state.uid, None)
            return False
        since = [self._room_since.setdefault(state.uid, now) for state in unit]
        return now - max(since) >= FREE_FOR_S

    def _has_room(self, unit: Unit) -> bool:
        return self._free_places(unit) is not None

    def _free_places(self, unit: Unit) -> Places | None:
        """As `_places`, within the quotas of their queues. A plan has compared its beneficiaries with them."""
        places = self._places(unit)  # known at once of nearly all pods, and quotas are a sum over their queues
        return None if places is None or self.quota_exceeded(unit) else places

    def _places(self, unit: Unit) -> Places | None:
        """Returns where those of these pods resume that have to move; None if not all of them have room."""
        for state in unit:
            held, node = self._book.grants.get(state.grant_id), self._book.nodes.get(state.charged)
            # Until the node has synced with this leader the book counts the whole grant: what others have is unknown.
            if node is None or node.agent_trouble or held is None or held.phase != "bound":
                return None
        return self.moves.places(unit)

    def _fits(self, parts: Sequence[GrantState]) -> bool:
        """Whether all that was granted to these fits again. What was never booked to other pods is free."""
        given, taken = sum_shares(held.given for held in parts), sum_shares(held.grant for held in parts)
        for (node, uuid), (mib, milli) in given.items():
            room = self._book.nodes[node].by_uuid.get(uuid) if node in self._book.nodes else None
            now_mib, now_milli = taken.get((node, uuid), (0, 0))
            # Processes outside Kerf may use more than is left, or a GPU may be smaller now. That does not matter for
            # resources that are not requested.
            if room is None or 0 < mib - now_mib > room.free_mib or 0 < milli - now_milli > room.free_milli:
                return False
        return True


_DOES = {
    "throttle": "throttled",
    "pause": "paused",
    "shrink": "shrunk by GPU memory that it has not allocated",
    "checkpoint": "checkpointed to host memory",
}


def _patch(state: PodState, suspension: str, reason: str, gpu_time: str) -> SuspendPod:
    meta = state.pod.metadata
    return SuspendPod(
        uid=state.uid,
        namespace=meta.namespace,
        name=meta.name,
        suspension=suspension,
        reason=reason,
        resource_version=meta.resource_version,
        gpu_time=gpu_time,
    )
