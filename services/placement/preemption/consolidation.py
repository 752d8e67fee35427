"""Moves among equals: who may be asked to end for somebody of no higher priority, because a place is kept for it. Pure.

Nobody loses its place, so neither priorities below nor dues of queues are asked for. What is lost is the run so far: its price
is the preemptor's to weigh, against what its operator lets it disturb.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from shared.book.states import PodState
from shared.contracts.preemption import Plan
from shared.contracts.queries import LeftAlone

Spare = Callable[[str, Collection[str]], bool]
"""Whether a gang needs this member no more, where these go too (`Gangs.can_spare`)."""


def refuses(
    plan: Plan,
    waiting: Sequence[PodState],
    going: Sequence[PodState],
    is_non_borrowing: Callable[[PodState], bool],
    can_spare: Spare,
) -> str:
    """Why these do not move for those; empty where they do."""
    for victim in plan.victims:
        if victim.action != "move" or not victim.to:
            return f"{victim.namespace}/{victim.name} is to lose its place, and a plan that consolidates takes nobody's"
    lowest = min(state.pod.spec.priority for state in waiting)
    for state in going:
        if state.pod.spec.priority > lowest:
            return f"{state.key} is of a higher priority than who would have its place"
        spare = state.gang is None or can_spare(state.uid, [other.uid for other in going])
        kept = why_not_migrated(state, is_non_borrowing) if spare else "its gang needs it"
        if kept:
            return f"{state.key} does not move: {kept}"
    return ""


def why_not_migrated(state: PodState, is_non_borrowing: Callable[[PodState], bool]) -> str:
    """Why nobody could carry out this pod's move, or may, in a word or two; empty where somebody could."""
    if not state.controller_uid:
        return "nothing makes it anew"
    return "within its queue's guarantee by policy" if is_non_borrowing(state) else ""


def spared(
    protected_pods: LeftAlone, giving: Collection[str], is_non_borrowing: Callable[[PodState], bool]
) -> Callable[[PodState], str]:
    """Whom an advice that is to be carried out leaves alone. `giving`: uids of who gives way in plans under way."""
    pods, namespaces = frozenset(protected_pods.pods), frozenset(protected_pods.namespaces)

    def why(state: PodState) -> str:
        if state.uid in giving:
            return "gives way already"
        if state.uid in pods or state.pod.metadata.namespace in namespaces:
            return "has made room lately"
        return why_not_migrated(state, is_non_borrowing)

    return why
