"""Events about plans on beneficiaries and victims, and what `kerf why` says about a suspended pod."""

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
"""The maximum of victims of a cancelled plan that get an Event: a plan may have hundreds."""


def preemption_started(plan: Plan, book: Book) -> list[m.Command]:
    """Returns the Event about a reservation on its first beneficiary: an Event costs as much as a Binding."""
    first = plan.beneficiaries[0]
    state = book.pods.get(first.uid)
    mates = len(plan.beneficiaries) - 1
    whole = f"it and {mates} more of its gang" if mates else "it"
    if plan.turn:
        does = "resumes" if first.resumes else "gets a place"
        note = (
            f"it is the turn of {whole}, which {does} on {first.node} when these are suspended: {list_victims(plan)} "
        )
        note += f"(plan {plan.plan_id})"
        return [m.SendPatches((pod_event(state, "PreemptionStarted", _ACTION, note, warns=False),))] if state else []
    note = (
        f"a place is reserved for {whole} on {first.node} while other pods are preempted: "
        f"{list_victims(plan)}. {describe_price(plan)} (plan {plan.plan_id})"
    )
    return (
        [] if state is None else [m.SendPatches((pod_event(state, "PreemptionStarted", _ACTION, note, warns=False),))]
    )


def preemption_cancelled(plan: Plan, reason: str, book: Book) -> list[m.Command]:
    """Returns the Events about a cancelled plan on a pending beneficiary and on terminating victims."""
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
            state, "PreemptionCancelled", _ACTION, f"the reservation is cancelled: {reason} (plan {plan.plan_id})"
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


def suspension_text(state: PodState, given_up: Suspension | None, *, returns: bool, quota: str = "") -> str:
    """Describes what a pod has given up for a while, or is to give up; empty if nothing.

    `given_up`: what its node has confirmed. `returns`: the pod is resuming.
    `quota`: which one it would exceed.
    """
    wanted = state.suspension or given_up
    if wanted is None:
        return ""
    if returns or state.suspension is None:
        return f"it takes back what it gave up ({wanted.action}, plan {wanted.plan_id})"
    has = "has given up" if given_up == state.suspension else "is to give up"
    when = "when there is capacity" + (f" and its queue's quota allows it: {quota}" if quota else "")
    return f"it {has} {_what(wanted)} for plan {wanted.plan_id}, and gets it back automatically {when}"


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
