"""A pod's trace as placement writes it: one span for each decision, one for each rejection, and what became of a
preemption that was reserved."""

from __future__ import annotations

from services.placement import messages as m
from shared.book.gangs import gang_trace
from shared.contracts.events import (
    GangPlaced,
    PlacementDecided,
    PlacementRejected,
    PodBound,
    PodResumed,
    PreemptionAbandoned,
    PreemptionExecuted,
    PreemptionReserved,
)
from shared.telemetry import Telemetry


class Traces:
    """Of one leader session. Pods that gain by a preemption are traced to their Binding, whatever the sampling."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._gaining: set[str] = set()

    def record(self, command: m.Publish) -> None:
        event = command.event
        match event:
            case PreemptionReserved() | PreemptionExecuted() | PreemptionAbandoned():
                if command.namespace != event.plan.beneficiaries[0].namespace:
                    return  # it is published under each namespace that it concerns, and recorded once
                gaining = {one.uid for one in event.plan.beneficiaries}
                if isinstance(event, PreemptionAbandoned):
                    self._gaining -= gaining
                else:
                    self._gaining |= gaining
                _record_preemption(self._telemetry, event)
            case PlacementDecided():
                record(self._telemetry, command, force=event.uid in self._gaining)
            case PodBound():
                record(self._telemetry, command, force=event.uid in self._gaining)
                self._gaining.discard(event.uid)
            case _:
                record(self._telemetry, command)


def _record_preemption(
    telemetry: Telemetry, event: PreemptionReserved | PreemptionExecuted | PreemptionAbandoned
) -> None:
    """In the trace of the first pod that gains; what was done to a victim is in the victim's, linked to that trace."""
    plan, name, end = event.plan, f"preemption.{event.VERB}", telemetry.now_ns()
    start, attributes = end, {"kerf.plan": plan.plan_id}
    if isinstance(event, PreemptionExecuted):
        start = end - event.took_ms * 1_000_000
    elif isinstance(event, PreemptionAbandoned):
        attributes["kerf.reason"] = event.reason
    span = telemetry.pod_span(
        plan.beneficiaries[0].uid,
        name,
        start_ns=start,
        end_ns=end,
        force=True,
        links=[telemetry.traceparent(victim.uid, force=True) for victim in plan.victims],
        attributes=attributes,
        events=[f"{victim.action} {victim.namespace}/{victim.name}" for victim in plan.victims],
    )
    for resumed in [b for b in plan.beneficiaries if b.resumes] if isinstance(event, PreemptionExecuted) else ():
        telemetry.pod_span(
            resumed.uid, "resumed", start_ns=start, end_ns=end, force=True, links=(span,), attributes=attributes
        )
    for victim in plan.victims if isinstance(event, PreemptionExecuted) else ():
        telemetry.pod_span(
            victim.uid,
            f"preempted.{victim.action}",
            start_ns=start,
            end_ns=end,
            force=True,
            links=(span,),
            attributes=attributes | {"kerf.plan.for": plan.gains},
        )


def record(telemetry: Telemetry, command: m.Publish, *, force: bool = False) -> None:
    """Nodes and reasons are attributes and events of one span, not spans of their own: those would cost more than the
    decision."""
    event = command.event
    match event:
        case PlacementDecided():
            end = telemetry.now_ns()
            telemetry.pod_span(
                event.uid,
                "placement",
                start_ns=end - event.waited_ms * 1_000_000,
                end_ns=end,
                force=force or event.waited_ms > SLOW_MS,
                links=(telemetry.traceparent(gang_trace(event.namespace, event.gang)),) if event.gang else (),
                attributes={
                    "k8s.pod.name": event.name,
                    "k8s.namespace.name": event.namespace,
                    "k8s.node.name": event.node,
                    "kerf.term": event.term,
                    "kerf.sequence": event.sequence,
                    "kerf.policy": event.policy,
                    "kerf.feasible_nodes": event.feasible_nodes,
                    **{f"kerf.score.{name}": value for name, value in event.scores.items()},
                },
            )
        case GangPlaced():
            end = telemetry.now_ns()
            telemetry.pod_span(
                gang_trace(event.namespace, event.name),
                "gang.placed",
                start_ns=end - event.waited_ms * 1_000_000,
                end_ns=end,
                force=True,
                root=True,
                attributes={
                    "kerf.gang": event.name,
                    "k8s.namespace.name": event.namespace,
                    "kerf.gang.pods": len(event.pods),
                    "kerf.gang.nodes": event.nodes,
                    "kerf.term": event.term,
                    "kerf.sequence": event.sequence,
                },
            )
        case PlacementRejected():
            explanation = event.explanation
            telemetry.pod_span(
                event.uid,
                "placement.rejected",
                force=True,
                attributes={
                    "k8s.pod.name": event.name,
                    "k8s.namespace.name": event.namespace,
                    "kerf.reason": explanation.sentence,
                },
                events=[f"{reason.nodes}x {reason.code}: {reason.sentence}" for reason in explanation.summary],
            )
        case PodResumed():
            end = telemetry.now_ns()
            telemetry.pod_span(
                event.uid,
                "suspended",
                start_ns=end - event.suspended_ms * 1_000_000,
                end_ns=end,
                force=True,
                attributes={"k8s.node.name": event.node, "kerf.action": event.action, "kerf.moved": event.moved},
            )
        case PodBound():
            end = telemetry.now_ns()
            telemetry.pod_span(
                event.uid,
                "bound",
                start_ns=end - event.bound_ms * 1_000_000,
                end_ns=end,
                force=force or event.bound_ms > SLOW_MS,
                attributes={"k8s.node.name": event.node, "kerf.grant": event.grant_id},
            )


SLOW_MS = 5_000
"""A pod that waited longer than this is traced whatever the sampling."""
