"""What people read on each victim of a plan: who came, why, and when it comes back."""

from __future__ import annotations

from shared.book.book import Book
from shared.contracts.preemption import Plan, Victim
from shared.queues.preemption_policy import PreemptionPolicy


def eviction(victim: Victim, plan: Plan, book: Book, preemption_policy: PreemptionPolicy) -> str:
    if plan.consolidates:
        return f"moves to {victim.to} so that {plan.gains} fits (plan {plan.plan_id}); a place is kept for it there"
    because = preemption_policy.reason_for(book.pods.get(plan.beneficiaries[0].uid), book.pods.get(victim.uid))
    return f"makes room for {plan.gains}, {because} (plan {plan.plan_id}); {_comes_back(victim, book)}"


def _comes_back(victim: Victim, book: Book) -> str:
    """When it does is for the ends of others to say: `kerf when` asks of the pod that waits then."""
    if victim.to:
        return f"a place is kept for it on {victim.to}"
    state = book.pods.get(victim.uid)
    owner = None if state is None else state.controller
    return (
        "nothing makes it anew"
        if owner is None
        else f"its {owner.kind} makes it anew, and it comes back when there is room (kerf when)"
    )
