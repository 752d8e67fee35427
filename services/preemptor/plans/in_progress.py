"""The plans in progress: the pods and nodes that they concern. Pure."""

from __future__ import annotations

from collections.abc import Collection

from services.preemptor.pending_pods import KNOWN_WITHIN_S, PendingPods
from services.preemptor.plans.execution import PlanExecution
from services.preemptor.protection import owner_of
from shared.book.book import Book
from shared.contracts.preemption import ENDS, Plan


class PlansInProgress(dict[str, PlanExecution]):
    """Their executions by plan id, from the proposal to the end."""

    def __init__(self, book: Book, pending: PendingPods) -> None:
        super().__init__()
        self._book, self._pending = book, pending
        self._settling: list[tuple[Plan, float]] = []
        """Executed plans, with the time. The feed has not shown all their Bindings, so freed capacity still looks
        free."""

    def begin(self, plan: Plan, now: float) -> PlanExecution:
        """Returns the execution of this plan, which is in progress from now on."""
        known = {victim.uid: self._book.pods.get(victim.uid) for victim in plan.victims}
        owners = {uid: uid if state is None else owner_of(state) for uid, state in known.items()}
        return self.setdefault(plan.plan_id, PlanExecution(plan, now, proposed_at=now, owners=owners))

    def settle(self, plan: Plan, now: float) -> None:
        """Records that a plan is executed."""
        self._settling.append((plan, now))

    def busy(self, now: float, but: Collection[str] = ()) -> set[str]:
        """Returns the nodes of plans in progress, without those of the plans `but`."""
        return {
            node
            for plan in self._plans(now)
            if plan.plan_id not in but
            for node in (*(b.node for b in plan.beneficiaries), *(v.to for v in plan.victims))
        }

    def promised(self) -> set[str]:
        """Returns the uids of the victims that are preempted and have not ended yet, as far as is known."""
        return {
            v.uid
            for one in self.values()
            for v in one.plan.victims
            if not one.executing or v.uid in one.victims_left or v.action not in ENDS
        }

    def ending(self) -> set[str]:
        """Returns the uids of all victims that are evicted, accepted or not, until their plans are over."""
        return {v.uid for one in self.values() for v in one.plan.victims if v.action in ENDS}

    def planned(self, now: float) -> set[str]:
        """Returns the uids of the pods for which capacity is reserved, or is to be."""
        return {b.uid for plan in self._plans(now) for b in plan.beneficiaries} | self._successors()

    def wants(self, uid: str) -> bool:
        """Whether this pod is pending."""
        state = self._book.pods.get(uid)
        return state is not None and state.wants_place

    def _successors(self) -> set[str]:
        """Returns the uids of pending replacements of migrated pods: capacity is reserved for them."""
        owners = {one.owners[v.uid] for one in self.values() for v in one.plan.victims if v.to}
        pods = self._book.pods
        return {uid for uid in self._pending if owners and uid in pods and owner_of(pods[uid]) in owners}

    def _plans(self, now: float) -> list[Plan]:
        """Returns the plans that are in progress, and those with a Binding that has not been seen yet."""
        self._settling = [
            (plan, since)
            for plan, since in self._settling
            if now - since < KNOWN_WITHIN_S and any(self.wants(b.uid) for b in plan.beneficiaries)
        ]
        return [*(one.plan for one in self.values()), *(plan for plan, _ in self._settling)]
