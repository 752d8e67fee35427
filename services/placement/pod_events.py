"""Events on pods: what `kubectl describe pod` tells of what placement does with it."""

from __future__ import annotations

from collections.abc import Iterable

from services.placement import messages as m
from shared.book.gangs import GangState
from shared.book.states import PodState
from shared.contracts.commands import AnnounceEvent, Answer


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


def binding_refused(state: PodState, answer: Answer) -> m.SendPatches:
    note = f"the Binding was refused ({answer.outcome}): {answer.message}; the pod is scheduled again"
    return warn(state, "BindingRefused", "Binding", note)


def gang_incomplete(gang: GangState, placed: Iterable[PodState]) -> m.SendPatches:
    """A gang has begun and has lacked members for longer than its time-out: its placed members get an Event."""
    parts = "".join(f" ({has} of {minimum} of {name})" for name, has, minimum in gang.short())
    note = (
        f"gang {gang.name} has {gang.has} of the {gang.minimum} pods it needs{parts}, for {gang.patience_s} s now; "
        "what was not bound has been given back. Delete the pods that run to free their GPUs, or let them wait"
    )
    bound = (state for state in placed if state.pod.spec.node_name)
    return m.SendPatches(tuple(pod_event(state, "GangIncomplete", "Scheduling", note) for state in bound))
