"""Pods that give up part of what they have for a while, and get it back. The annotation says what is wanted, the node's word
what is so, and the book follows the node: what a pod gives up is others' only once its agent has said that it is given up.

It comes back the other way round. The book counts all of it again first, and only where there is room; then the annotation
goes, and then the agent hears. A leader that dies between any two of these steps leaves a pod that is suspended a little longer.

Each order to the API server is for one version of the pod, and a new leader touches all that are suspended: until it has seen
them at another version nobody else gets what they gave up, for an order of an earlier leader may still arrive, and end it.
`tests/model/suspension.py` shows that all of this is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
"""Room that others who wait do not take for so long is given back to whom it was taken from."""


def is_suspension(victim: Victim) -> bool:
    return victim.action in SUSPEND_ACTIONS


def suspension_by(victim: Victim, plan_id: str) -> Suspension:
    if victim.action not in SUSPEND_ACTIONS:
        raise ValueError(f"{victim.action} suspends nobody")
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
        self._told: dict[str, Suspension] = {}
        """What each agent was told last, by pod."""
        self._resuming: dict[str, float] = {}
        """Pods whose annotation is to go, with when that was said last."""
        self._room_since: dict[str, float] = {}
        self._unmoved: dict[str, str] = {}
        """Pods that were suspended when this leader began, with the version that it met them at."""
        self._said: dict[str, Suspension] = {}
        """What their nodes have said of them meanwhile."""
        self._touched_at = 0.0

    # --- to suspend ------------------------------------------------------------------------------------------------

    def order(self, plan: Plan) -> list[m.Command]:
        """The plan is in the log: its victims that only give up something are told so."""
        orders = []
        for victim in plan.victims:
            state = self._book.pods.get(victim.uid)
            if is_suspension(victim) and state is not None and state.suspension != suspension_by(victim, plan.plan_id):
                because = self._preemption_policy.reason_for(self._book.pods.get(plan.beneficiaries[0].uid), state)
                reason = f"{_DOES[victim.action]} for {plan.gains}, {because}; it goes on by itself when there is room (plan {plan.plan_id})"
                orders.append(_patch(state, encode_suspension(suspension_by(victim, plan.plan_id)), reason))
        return [m.SendPatches(tuple(orders))] if orders else []

    def returns(self, state: PodState) -> bool:
        """Whether it takes back what it gave up: nobody else gets it any more, and its node may not have heard."""
        return state.uid in self._resuming

    def is_done(self, victim: Victim, plan_id: str) -> bool:
        """Whether the node has said that it is given up; a pod that has ended has given up all."""
        held = self._book.grants.get(victim.grant_id)
        return held is None or (is_suspension(victim) and held.suspension == suspension_by(victim, plan_id))

    def adopt(self, term: int, now: float) -> list[m.Command]:
        """A new leader meets the pods: what their annotations say their agents hear by the sync."""
        suspension = [state for state in self._book.pods.values() if state.suspension is not None]
        self._told = {state.uid: state.suspension for state in suspension if state.suspension is not None}
        self._unmoved = {state.uid: state.pod.metadata.resource_version for state in suspension}
        self._touched_at = now
        return [m.SendPatches(tuple(touch(state, term) for state in suspension))] if suspension else []

    def annotation_seen(self, state: PodState, now: float) -> list[m.Command]:
        """The annotation came, changed or went: the agent hears of it. One that goes without this leader's word, by an order of an
        earlier one that came late, is put back while others have what was given up."""
        self._moved(state)
        held = self._book.grants.get(state.grant_id)
        if held is None or held.phase != "bound" or self._told.get(state.uid) == state.suspension:
            return []
        if state.suspension is None and held.suspension is not None and not self._fits(held):
            return [m.SendPatches((_patch(state, encode_suspension(held.suspension), "others have what it gave up"),))]
        if state.suspension is None:
            self._told.pop(state.uid, None)
            self._resuming.pop(state.uid, None)
            self._book.suspend(held.grant_id, None)
        else:
            self._told[state.uid] = state.suspension
        return self._nodes.granted(held, now)

    def node_answered(self, grant_id: str, suspension: Suspension | None, reason: str = "") -> list[m.Command]:
        """The agent's word on a grant: what is given up now. A late word on another order says nothing. Where it cannot, the order
        is taken back, and a plan that counts on it ends by its time."""
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
            return [m.SendPatches((_patch(state, "", f"its node cannot: {reason}"),))]
        return []

    def is_current(self, grant_id: str, suspension: Suspension | None) -> bool:
        """Whether an agent's yes is to what it was told last. One to an order before that leaves the last one to be said again."""
        held = self._book.grants.get(grant_id)
        return held is None or suspension == self._told.get(held.uid)

    def _moved(self, state: PodState) -> None:
        """Seen at another version than this leader met it at: no order of an earlier one can come true any more."""
        if self._unmoved.get(state.uid, state.pod.metadata.resource_version) != state.pod.metadata.resource_version:
            del self._unmoved[state.uid]
            self.node_answered(state.grant_id, self._said.pop(state.uid, None))

    def synced(self, suspension: Mapping[str, Suspension]) -> None:
        """What a node tells a new leader of its grants."""
        for grant_id, given_up in suspension.items():
            self.node_answered(grant_id, given_up)

    # --- to resume ----------------------------------------------------------------------------------------------

    def tick(self, plans: set[str], term: int, now: float) -> list[m.Command]:
        """Those whose plan is over (not among these) get back what they gave up, where nobody else has taken it for a while:
        the most important first, of equals the oldest."""
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

    def resume_before(self, plans: set[str], now: float) -> Callable[[PodState], list[m.Command]]:
        """What is said before somebody who waits is tried: whom that one could not ask to give way does not wait until it is
        served. Else whoever comes next, however unimportant, would keep suspended who has to be there first."""
        found: list[PodState] | None = None

        def before(waiter: PodState) -> list[m.Command]:
            nonlocal found
            if found is None:
                found = [state for state in self._over(plans) if self._has_room(state)]
                self._preemption_policy.begin()
            going = [
                s for s in found if s.uid not in self._resuming and not self._preemption_policy.may_preempt(waiter, s)
            ]
            orders = tuple(self._resume(state, now) for state in going if self._has_room(state))
            return [m.SendPatches(orders)] if orders else []

        return before

    def _over(self, plans: set[str]) -> list[PodState]:
        """Those that are suspended for no open plan: the most important first, of equals the oldest."""
        suspension = (self._book.pods[uid] for uid in self._told if uid in self._book.pods and uid not in self._unmoved)
        found = [
            state for state in suspension if state.suspension is not None and state.suspension.plan_id not in plans
        ]
        return sorted(found, key=lambda s: (-s.pod.spec.priority, s.pod.metadata.creation_timestamp, s.uid))

    def _resume(self, state: PodState, now: float) -> SuspendPod:
        self._book.suspend(state.grant_id, None)
        self._resuming[state.uid] = now
        return _patch(state, "", "there is room for all that it was given")

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
        # Until this leader has heard from the node the book counts all of it: what others have there now is not known.
        heard = node is not None and not node.agent_trouble
        return heard and held is not None and held.phase == "bound" and self._fits(held)

    def _fits(self, held: GrantState) -> bool:
        """Whether there is room for all that was given. What was never booked to others is there."""
        taken = sum_shares((held.grant,))
        for (node, uuid), (mib, milli) in sum_shares((held.given,)).items():
            room = self._book.nodes[node].by_uuid.get(uuid) if node in self._book.nodes else None
            now_mib, now_milli = taken.get((node, uuid), (0, 0))
            # Strangers may have more than is left, or a GPU be smaller now: who asks for none of it is not kept off by that.
            if room is None or 0 < mib - now_mib > room.free_mib or 0 < milli - now_milli > room.free_milli:
                return False
        return True


_DOES = {
    "throttle": "gives up compute",
    "pause": "pauses",
    "shrink": "gives up GPU memory that it has not allocated",
    "checkpoint": "pauses, its GPU memory on the host,",
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
