"""Suspends pods, which give up part of what they have for a while, and resumes them.

The annotation is the desired state, the node's confirmation the actual state, and the book follows the node: other pods
get what a pod gives up only after its agent has confirmed it.

Resuming takes the opposite order. First the book counts all of the grant again, if there is capacity; then the
annotation is removed; then the agent is told. A leader that dies between two of these steps leaves the pod suspended
a little longer.

Each order to the API server is for one resourceVersion of the pod, and a new leader touches all suspended pods. Until
it has seen them at another version, no other pod gets what they gave up: an order of an earlier leader may still
arrive and end the suspension. `tests/model/suspension.py` shows that all of this is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from services.placement import messages as m
from services.placement.protocol.capacity_changes import CapacityChanges
from services.placement.protocol.nodes import Nodes
from services.placement.protocol.recovery import touch
from shared.book.book import Book
from shared.book.states import GrantState, PodState
from shared.contracts.commands import SuspendPod
from shared.contracts.preemption import Plan, Victim
from shared.model.grant import sum_shares
from shared.model.suspension import SUSPEND_ACTIONS, Suspension, encode_suspension
from shared.queues.preemption_policy import PreemptionPolicy

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
        self, book: Book, nodes: Nodes, preemption_policy: PreemptionPolicy, capacity_changes: CapacityChanges
    ) -> None:
        self._book, self._nodes, self._preemption_policy, self._capacity_changes = (
            book,
            nodes,
            preemption_policy,
            capacity_changes,
        )
        self._open_plans: Collection[str] = ()
        self._resumable: list[PodState] | None = None
        """In this turn of the committer: the pods that could be resumed; None until that is asked."""
        self._told: dict[str, Suspension] = {}
        """What each pod's agent was told last, by uid."""
        self._resuming: dict[str, float] = {}
        """By uid of pods whose annotation is being removed: when that was last ordered."""
        self._room_since: dict[str, float] = {}
        self._unmoved: dict[str, str] = {}
        """By uid of pods that were suspended when this leader began: their resourceVersion at that time."""
        self._said: dict[str, Suspension] = {}
        """What the nodes of `_unmoved` pods have confirmed meanwhile."""
        self._touched_at = 0.0

    # --- to suspend ------------------------------------------------------------------------------------------------

    def order(self, plan: Plan) -> list[m.Command]:
        """Returns the orders that suspend the victims of a logged plan."""
        orders = []
        for victim in plan.victims:
            state = self._book.pods.get(victim.uid)
            if is_suspension(victim) and state is not None and state.suspension != suspension_by(victim, plan.plan_id):
                because = self._preemption_policy.reason_for(self._book.pods.get(plan.beneficiaries[0].uid), state)
                reason = (
                    f"{_DOES[victim.action]} for {plan.gains}, {because}; it resumes when there is capacity "
                    f"(plan {plan.plan_id})"
                )
                orders.append(_patch(state, encode_suspension(suspension_by(victim, plan.plan_id)), reason))
        return [m.SendPatches(tuple(orders))] if orders else []

    def returns(self, state: PodState) -> bool:
        """Whether a pod is resuming: no other pod gets what it gave up, and its node may not know yet."""
        return state.uid in self._resuming

    def is_done(self, victim: Victim, plan_id: str) -> bool:
        """Whether the node has confirmed the suspension.

        A pod whose grant is released has given up everything.
        """
        held = self._book.grants.get(victim.grant_id)
        return held is None or (is_suspension(victim) and held.suspension == suspension_by(victim, plan_id))

    def adopt(self, term: int, now: float) -> list[m.Command]:
        """Takes over the suspended pods of an earlier leader; their agents learn the annotations by the sync."""
        suspension = [state for state in self._book.pods.values() if state.suspension is not None]
        self._told = {state.uid: state.suspension for state in suspension if state.suspension is not None}
        self._unmoved = {state.uid: state.pod.metadata.resource_version for state in suspension}
        self._touched_at = now
        return [m.SendPatches(tuple(touch(state, term) for state in suspension))] if suspension else []

    def annotation_seen(self, state: PodState, now: float) -> list[m.Command]:
        """Handles an annotation that was added, changed or removed: tells the agent.

        An annotation that was removed by a late order of an earlier leader is restored while other pods have what was
        given up.
        """
        self._moved(state)
        held = self._book.grants.get(state.grant_id)
        if held is None or held.phase != "bound" or self._told.get(state.uid) == state.suspension:
            return []
        if state.suspension is None and held.suspension is not None and not self._fits(held):
            return [
                m.SendPatches((_patch(state, encode_suspension(held.suspension), "other pods have what it gave up"),))
            ]
        if state.suspension is None:
            self._told.pop(state.uid, None)
            self._resuming.pop(state.uid, None)
            self._book.suspend(held.grant_id, None)
        else:
            self._told[state.uid] = state.suspension
        return self._nodes.granted(held, now)

    def node_answered(self, grant_id: str, suspension: Suspension | None, reason: str = "") -> list[m.Command]:
        """Handles an agent's answer about a grant: what is given up now.

        A late answer to another order is ignored. If the agent cannot do it, the order is withdrawn, and a plan that
        depends on it ends at its deadline.
        """
        held = self._book.grants.get(grant_id)
        state = None if held is None else self._book.pods.get(held.uid)
        if held is None or state is None or state.suspension is None or state.uid in self._resuming:
            return []
        if suspension == state.suspension and state.uid in self._unmoved:
            self._said[state.uid] = suspension
        elif suspension == state.suspension:
            self._book.suspend(grant_id, state.suspension)
            self._capacity_changes.note()
        elif suspension is None and reason:
            return [m.SendPatches((_patch(state, "", f"its node cannot do it: {reason}"),))]
        return []

    def is_current(self, grant_id: str, suspension: Suspension | None) -> bool:
        """Whether an agent's confirmation is about the latest order; otherwise that order has to be repeated."""
        held = self._book.grants.get(grant_id)
        return held is None or suspension == self._told.get(held.uid)

    def _moved(self, state: PodState) -> None:
        """Notes that a pod has a new resourceVersion: orders of an earlier leader cannot succeed any more."""
        if self._unmoved.get(state.uid, state.pod.metadata.resource_version) != state.pod.metadata.resource_version:
            del self._unmoved[state.uid]
            self.node_answered(state.grant_id, self._said.pop(state.uid, None))

    def synced(self, suspension: Mapping[str, Suspension]) -> None:
        """Handles what a node tells a new leader about the suspension of its grants."""
        for grant_id, given_up in suspension.items():
            self.node_answered(grant_id, given_up)

    # --- to resume ----------------------------------------------------------------------------------------------

    def tick(self, plans: set[str], term: int, now: float) -> list[m.Command]:
        """Resumes pods whose plan is over (not in `plans`) and whose capacity has been free for a while.

        The highest priority comes first, then the oldest.
        """
        self._told = {uid: suspension for uid, suspension in self._told.items() if uid in self._book.pods}
        self._resuming = {uid: at for uid, at in self._resuming.items() if uid in self._book.pods}
        waiting = self._over(plans)
        self._room_since = {s.uid: self._room_since[s.uid] for s in waiting if s.uid in self._room_since}
        orders = []
        for state in waiting:
            said = self._resuming.get(state.uid)
            if said is not None and now - said < REPEAT_S:
                continue
            if said is None and not self._may_resume(state, now):
                continue
            orders.append(self._resume(state, now))
        return self._touch_again(term, now) + ([m.SendPatches(tuple(orders))] if orders else [])

    def begin_turn(self, open_plans: Collection[str]) -> None:
        """Begins a turn of the committer. `open_plans`: plans whose reservations are in force."""
        self._open_plans, self._resumable = open_plans, None

    def resume_before(self, waiter: PodState, now: float) -> list[m.Command]:
        """Resumes suspended pods before a pending pod is tried: those that it could not preempt.

        Otherwise any pending pod, however low its priority, would keep pods suspended that have precedence.
        """
        if self._resumable is None:
            self._resumable = [state for state in self._over(self._open_plans) if self._has_room(state)]
            self._preemption_policy.begin()
        going = [
            s
            for s in self._resumable
            if s.uid not in self._resuming and not self._preemption_policy.may_preempt(waiter, s)
        ]
        orders = tuple(self._resume(state, now) for state in going if self._has_room(state))
        return [m.SendPatches(orders)] if orders else []

    def _over(self, plans: Collection[str]) -> list[PodState]:
        """Returns the pods that are suspended for no open plan: the highest priority first, then the oldest."""
        suspension = (self._book.pods[uid] for uid in self._told if uid in self._book.pods and uid not in self._unmoved)
        found = [
            state for state in suspension if state.suspension is not None and state.suspension.plan_id not in plans
        ]
        return sorted(found, key=lambda s: (-s.pod.spec.priority, s.pod.metadata.creation_timestamp, s.uid))

    def _resume(self, state: PodState, now: float) -> SuspendPod:
        self._book.suspend(state.grant_id, None)
        self._resuming[state.uid] = now
        return _patch(state, "", "all of its grant is free again")

    def _touch_again(self, term: int, now: float) -> list[m.Command]:
        self._unmoved = {uid: version for uid, version in self._unmoved.items() if uid in self._book.pods}
        if not self._unmoved or now - self._touched_at < REPEAT_S:
            return []
        self._touched_at = now
        return [m.SendPatches(tuple(touch(self._book.pods[uid], term) for uid in self._unmoved))]

    def _may_resume(self, state: PodState, now: float) -> bool:
        if not self._has_room(state):
            self._room_since.pop(state.uid, None)
            return False
        return now - self._room_since.setdefault(state.uid, now) >= FREE_FOR_S

    def _has_room(self, state: PodState) -> bool:
        held, node = self._book.grants.get(state.grant_id), self._book.nodes.get(state.charged)
        # Until the node has synced with this leader the book counts the whole grant: what others have is unknown.
        heard = node is not None and not node.agent_trouble
        return heard and held is not None and held.phase == "bound" and self._fits(held)

    def _fits(self, held: GrantState) -> bool:
        """Whether all that was granted fits again. What was never booked to other pods is free."""
        taken = sum_shares((held.grant,))
        for (node, uuid), (mib, milli) in sum_shares((held.given,)).items():
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


def _patch(state: PodState, suspension: str, reason: str) -> SuspendPod:
    meta = state.pod.metadata
    return SuspendPod(
        uid=state.uid,
        namespace=meta.namespace,
        name=meta.name,
        suspension=suspension,
        reason=reason,
        resource_version=meta.resource_version,
    )
