"""The reason of an eviction, as Events show it: which pod preempts the victim, why, and its replacement."""

from __future__ import annotations

from shared.book.book import Book
from shared.contracts.preemption import Plan, Victim
from shared.queues.preemption_policy import PreemptionPolicy


def eviction_reason(victim: Victim, plan: Plan, book: Book, preemption_policy: PreemptionPolicy) -> str:
    if plan.consolidates:
        return (
            f"migrated to {victim.to} so that {plan.gains} fits (plan {plan.plan_id}); "
            "capacity is reserved for it there"
        )
    reason = preemption_policy.reason_for(book.pods.get(plan.beneficiaries[0].uid), book.pods.get(victim.uid))
    return f"preempted by {plan.gains}, {reason} (plan {plan.plan_id}); {_replacement(victim, book)}"


def _replacement(victim: Victim, book: Book) -> str:
    """Says whether the pod is replaced.

    When the replacement fits depends on other pods: `kerf when` estimates it.
    """
    if victim.to:
        return f"capacity is reserved for it on {victim.to}"
    state = book.pods.get(victim.uid)
    owner = None if state is None else state.controller
    return (
        "it has no controller that replaces it"
        if owner is None
        else f"its {owner.kind} replaces it, and the replacement is placed when it fits (kerf when)"
    )
