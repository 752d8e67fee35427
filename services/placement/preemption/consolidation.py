"""Checks consolidation plans, which migrate pods of no lower priority to reserved capacity. Pure.

No pod loses its place, so a lower priority or a fair share is not required. What is lost is the run so far. The
preemptor compares its price with what the operator lets migrations disturb.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from shared.book.states import PodState
from shared.contracts.preemption import Plan
from shared.contracts.queries import LeftAlone
from shared.model.life import NOT_PREEMPTIBLE

Spare = Callable[[str, Collection[str]], bool]
"""Whether a gang can do without this member if these leave too (`Gangs.can_spare`)."""


def refuses(
    plan: Plan,
    waiting: Sequence[PodState],
    going: Sequence[PodState],
    is_non_borrowing: Callable[[PodState], bool],
    can_spare: Spare,
) -> str:
    """Returns why the plan is refused; empty if it is allowed."""
    for victim in plan.victims:
        if victim.action != "move" or not victim.to:
            return f"{victim.namespace}/{victim.name} would lose its place, and a consolidation plan only migrates pods"
    lowest = min(state.pod.spec.priority for state in waiting)
    for state in going:
        if state.pod.spec.priority > lowest:
            return f"{state.key} has a higher priority than the pod that would get its place"
        spare = state.gang is None or can_spare(state.uid, [other.uid for other in going])
        kept = why_not_migrated(state, is_non_borrowing) if spare else "its gang needs it"
        if kept:
            return f"{state.key} is not migrated: {kept}"
    return ""


def why_not_migrated(state: PodState, is_non_borrowing: Callable[[PodState], bool]) -> str:
    """Returns in a few words why a pod cannot or may not be migrated; empty if it may."""
    if not state.life.preemptible:
        return f"it is {NOT_PREEMPTIBLE}"
    if not state.controller_uid:
        return "it has no controller that replaces it"
    return "within its queue's guarantee by policy" if is_non_borrowing(state) else ""


def exclusion_filter(
    protected_pods: LeftAlone, giving: Collection[str], is_non_borrowing: Callable[[PodState], bool]
) -> Callable[[PodState], str]:
    """Returns a function that says why a pod is excluded from advice that will be executed.

    `giving`: uids of victims of plans in progress.
    """
    pods, namespaces = frozenset(protected_pods.pods), frozenset(protected_pods.namespaces)

    def why(state: PodState) -> str:
        if state.uid in giving:
            return "is a victim of another plan"
        if state.uid in pods or state.pod.metadata.namespace in namespaces:
            return "is protected from preemption, or its namespace's hourly eviction budget is spent"
        return why_not_migrated(state, is_non_borrowing)

    return why
