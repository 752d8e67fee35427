"""A pod's trace as placement writes it: one span for each decision, one for each rejection."""

from __future__ import annotations

from services.placement import messages as m
from shared.book.gangs import gang_trace
from shared.contracts.events import GangPlaced, PlacementDecided, PlacementRejected, PodBound
from shared.telemetry import Telemetry


def record(telemetry: Telemetry, command: m.Publish) -> None:
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
                force=event.waited_ms > SLOW_MS,
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
        case PodBound():
            end = telemetry.now_ns()
            telemetry.pod_span(
                event.uid,
                "bound",
                start_ns=end - event.bound_ms * 1_000_000,
                end_ns=end,
                force=event.bound_ms > SLOW_MS,
                attributes={"k8s.node.name": event.node, "kerf.grant": event.grant_id},
            )


SLOW_MS = 5_000
"""A pod that waited longer than this is traced whatever the sampling."""
