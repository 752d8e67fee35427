"""What people read of plans on their pods: Events for those who gain and those who give way, and what `kerf why` says of a pod
that is suspended."""

from __future__ import annotations

from services.placement import messages as m
from services.placement.pod_events import pod_event
from shared.book.book import Book
from shared.book.states import PodState
from shared.contracts.plan_texts import describe_price, list_victims
from shared.contracts.preemption import Plan
from shared.model.suspension import Suspension

_ACTION = "Preempting"
_MAX_NOTIFIED = 32
"""Of those who end for nothing: a plan may have hundreds."""


def preemption_started(plan: Plan, book: Book) -> list[m.Command]:
    """Places are kept: told to who gains, of a gang to the first, for an Event costs as much as a Binding."""
    first = plan.beneficiaries[0]
    state = book.pods.get(first.uid)
    mates = len(plan.beneficiaries) - 1
    whom = f"it and {mates} more of its gang" if mates else "it"
    note = f"a place is kept for {whom}, on {first.node}, while others make room: {list_victims(plan)}. {describe_price(plan)} (plan {plan.plan_id})"
    return (
        [] if state is None else [m.SendPatches((pod_event(state, "PreemptionStarted", _ACTION, note, warns=False),))]
    )


def preemption_cancelled(plan: Plan, reason: str, book: Book) -> list[m.Command]:
    """The plan is given up: told to the first of those who gain and wait yet, and to those who end for nobody by now."""
    gains = [
        state
        for b in plan.beneficiaries
        if (state := book.pods.get(b.uid)) is not None and state.wants_place and not state.charged
    ]
    gives = [
        state
        for v in plan.victims
        if (state := book.pods.get(v.uid)) is not None and state.pod.metadata.deletion_timestamp is not None
    ]
    events = [
        pod_event(
            state, "PreemptionCancelled", _ACTION, f"no place is kept for it any more: {reason} (plan {plan.plan_id})"
        )
        for state in gains[:1]
    ]
    events += [
        pod_event(
            state,
            "PreemptionCancelled",
            _ACTION,
            f"eviction continues, but plan {plan.plan_id} for {plan.gains} was cancelled: {reason}",
        )
        for state in gives[:_MAX_NOTIFIED]
    ]
    return [m.SendPatches(tuple(events))] if events else []


def suspension_text(state: PodState, given_up: Suspension | None, *, returns: bool) -> str:
    """What a pod has given up for a while, or is to; empty for nothing. `given_up`: by its node's word. `returns`: it takes it back."""
    wanted = state.suspension or given_up
    if wanted is None:
        return ""
    if returns or state.suspension is None:
        return f"it takes back what it gave up ({wanted.action}, plan {wanted.plan_id})"
    has = "has given up" if given_up == state.suspension else "is to give up"
    return f"it {has} {_what(wanted)} for plan {wanted.plan_id}, and gets it back by itself when there is room"


def _what(suspension: Suspension) -> str:
    match suspension.action:
        case "throttle":
            return f"compute (throttle: it keeps {suspension.compute_milli / 10:g} % of each of its GPUs)"
        case "pause":
            return "all of its compute (pause: its GPU memory stays where it is)"
        case "shrink":
            return f"GPU memory (shrink: it keeps {suspension.memory_mib} MiB of each of its GPUs)"
        case "checkpoint":
            return "its GPUs (checkpoint: its GPU memory is on the host)"
