"""The preemptor's part of a preemption's trace: the plan, and what was asked of its victims.

A preemption is one story in the trace of the first pod that gains by it, and is always recorded. Every other pod that
the plan concerns has a span in its own trace, linked to the plan's. Placement adds the reservation and its end.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.contracts.preemption import ENDS, Plan
from shared.telemetry import Telemetry

MAX_PLANS = 1000


class PlanTraces:
    """Plans that this process has proposed, until they end; the oldest is forgotten where there are too many."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._open: dict[str, tuple[Plan, str]] = {}
        """By plan id: the plan, and the traceparent of its span."""

    def propose(self, plan: Plan) -> None:
        first, *others = plan.beneficiaries
        span = self._telemetry.pod_span(
            first.uid,
            "preemption.plan",
            force=True,
            links=[self._telemetry.traceparent(uid, force=True) for uid in _others(plan)],
            attributes={
                "k8s.pod.name": first.name,
                "k8s.namespace.name": first.namespace,
                "k8s.node.name": first.node,
                "kerf.plan": plan.plan_id,
                "kerf.plan.victims": len(plan.victims),
                "kerf.plan.price_gpu_seconds": plan.price_gpu_seconds,
                "kerf.plan.deadline_s": plan.deadline_s,
                "kerf.plan.consolidates": plan.consolidates,
            },
            events=[
                f"{victim.action} {victim.namespace}/{victim.name}" + (f" to {victim.to}" if victim.to else "")
                for victim in plan.victims
            ],
        )
        for other in others:
            self._linked(other.uid, "preemption.plan", plan, span, {"k8s.node.name": other.node})
        for victim in plan.victims:
            self._linked(victim.uid, "preemption.victim", plan, span, {"kerf.action": victim.action})
        while len(self._open) >= MAX_PLANS:
            del self._open[next(iter(self._open))]
        self._open[plan.plan_id] = (plan, span)

    def evict(self, plan_id: str, outcomes: Mapping[str, str], start_ns: int) -> None:
        """`outcomes`: by uid, what became of the evictions that were asked for at `start_ns`."""
        plan, span = self._open.get(plan_id, (None, ""))
        if plan is None:
            return
        asked = [victim for victim in plan.victims if victim.uid in outcomes and victim.action in ENDS]
        failed = sum(outcomes[victim.uid] != "done" for victim in asked)
        self._telemetry.pod_span(
            plan.beneficiaries[0].uid,
            "preemption.evict",
            force=True,
            parent=span,
            start_ns=start_ns,
            kind="client",
            links=[self._telemetry.traceparent(victim.uid, force=True) for victim in asked],
            attributes={"kerf.plan": plan_id, "kerf.plan.evictions": len(asked)},
            events=[f"{victim.namespace}/{victim.name}: {outcomes[victim.uid]}" for victim in asked],
            error=f"{failed} of {len(asked)} evictions were not accepted" if failed else "",
        )
        for victim in asked:
            outcome = outcomes[victim.uid]
            self._linked(victim.uid, "preemption.evict", plan, span, {"kerf.outcome": outcome}, start_ns=start_ns)

    def cancel(self, plan_id: str, reason: str) -> None:
        plan, span = self._open.pop(plan_id, (None, ""))
        if plan is not None:
            self._telemetry.pod_span(
                plan.beneficiaries[0].uid,
                "preemption.cancel",
                force=True,
                parent=span,
                attributes={"kerf.plan": plan_id, "kerf.reason": reason},
            )

    def end(self, plan_id: str) -> None:
        """Placement says that the plan is over, and records how."""
        self._open.pop(plan_id, None)

    def _linked(
        self,
        uid: str,
        name: str,
        plan: Plan,
        span: str,
        attributes: Mapping[str, str],
        *,
        start_ns: int | None = None,
    ) -> None:
        attributes = {"kerf.plan": plan.plan_id, "kerf.plan.for": plan.gains, **attributes}
        self._telemetry.pod_span(uid, name, force=True, links=(span,), attributes=attributes, start_ns=start_ns)


def _others(plan: Plan) -> list[str]:
    """The uids of all pods of the plan but the first that gains."""
    return [*(one.uid for one in plan.beneficiaries[1:]), *(victim.uid for victim in plan.victims)]
