"""What people read of a plan: its price, and on each victim who came, why, and when it comes back."""

from __future__ import annotations

from shared.book.book import Book
from shared.contracts.preemption import ENDS, Action, Plan, Victim

_TIME = "lose nothing but time"
_FOR_A_WHILE: dict[Action, tuple[str, str]] = {
    "throttle": ("give up compute", _TIME), "pause": ("pause", _TIME), "shrink": ("give up GPU memory that they do not use", "lose nothing unless they grow"),
    "checkpoint": ("go to the host's memory", _TIME),
}  # fmt: skip


def price(plan: Plan) -> str:
    ends = sum(victim.action in ENDS for victim in plan.victims)
    stays = len(plan.victims) - ends
    moves = sum(victim.action == "move" for victim in plan.victims)
    again = f" ({moves} with a place kept elsewhere)" if moves else ""
    parts = [f"{_pods(ends)} would end{again}, and lose {plan.price_gpu_seconds} GPU-seconds"] if ends else []
    if stays:
        does, loses = _FOR_A_WHILE[next(victim.action for victim in plan.victims if victim.action not in ENDS)]
        parts.append(f"{_pods(stays)} would {does} for a while, and {loses}")
    return "; ".join(parts)


def eviction(victim: Victim, plan: Plan, book: Book) -> str:
    if plan.consolidates:
        return f"moves to {victim.to} so that {plan.gains} fits (plan {plan.plan_id}); a place is kept for it there"
    return f"makes room for {plan.gains}, {_because(victim, plan, book)} (plan {plan.plan_id}); {_comes_back(victim, book)}"


def _because(victim: Victim, plan: Plan, book: Book) -> str:
    gains, gives = book.pods.get(plan.beneficiaries[0].uid), book.pods.get(victim.uid)
    if gains is not None and gives is not None and gains.pod.spec.priority <= gives.pod.spec.priority:
        return "whose queue takes back what it is due"
    return "which has a higher priority"


def _comes_back(victim: Victim, book: Book) -> str:
    """When it does is for the ends of others to say: `kerf when` asks of the pod that waits then."""
    if victim.to:
        return f"a place is kept for it on {victim.to}"
    state = book.pods.get(victim.uid)
    owner = None if state is None else state.controller
    return "nothing makes it anew" if owner is None else f"its {owner.kind} makes it anew, and it comes back when there is room (kerf when)"


def _pods(count: int) -> str:
    return f"{count} pod{'s' if count > 1 else ''}"
