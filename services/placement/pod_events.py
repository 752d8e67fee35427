"""Events on pods: what `kubectl describe pod` tells of what placement does with it."""

from __future__ import annotations

from services.placement import messages as m
from shared.book.states import PodState
from shared.contracts.commands import AnnounceEvent


def pod_event(state: PodState, reason: str, action: str, note: str, *, warns: bool = True) -> AnnounceEvent:
    """`reason`, `action` and `note` are those of events.k8s.io/v1; `warns`: whether its type is Warning or Normal."""
    meta = state.pod.metadata
    return AnnounceEvent(
        uid=state.uid,
        namespace=meta.namespace,
        name=meta.name,
        type="Warning" if warns else "Normal",
        reason=reason,
        action=action,
        note=note,
    )


def warn(state: PodState, reason: str, action: str, note: str) -> m.SendPatches:
    return m.SendPatches((pod_event(state, reason, action, note),))
