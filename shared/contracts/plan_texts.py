"""A plan in words: for Events, answers and the command line, which all say the same of it."""

from __future__ import annotations

from shared.contracts.preemption import ENDS, Action, Plan, Victim
from shared.model.life import DEFAULT_GRACE_S

_TIME = "lose nothing but time"
_FOR_A_WHILE: dict[Action, tuple[str, str]] = {
    "throttle": ("give up compute", _TIME),
    "pause": ("pause", _TIME),
    "shrink": ("give up GPU memory that they do not use", "lose nothing unless they grow"),
    "checkpoint": ("go to the host's memory", _TIME),
}
_DOES: dict[Action, str] = {
    "throttle": "gives up compute",
    "pause": "pauses",
    "shrink": "gives up GPU memory",
    "checkpoint": "goes to the host's memory",
    "move": "moves",
    "evict": "ends",
}


def describe_price(plan: Plan) -> str:
    """What becomes of how many, and what that costs."""
    ends = sum(victim.action in ENDS for victim in plan.victims)
    stays = len(plan.victims) - ends
    moves = sum(victim.action == "move" for victim in plan.victims)
    again = f" ({moves} with a place kept elsewhere)" if moves else ""
    grace_s = max((victim.grace_s for victim in plan.victims), default=0)
    slowly = f", and have up to {grace_s} s to end" if grace_s > DEFAULT_GRACE_S else ""
    parts = [f"{_pods(ends)} would end{again}, and lose {plan.price_gpu_seconds} GPU-seconds{slowly}"] if ends else []
    if stays:
        does, loses = _FOR_A_WHILE[next(victim.action for victim in plan.victims if victim.action not in ENDS)]
        parts.append(f"{_pods(stays)} would {does} for a while, and {loses}")
    return "; ".join(parts)


def list_victims(plan: Plan, most: int = 3) -> str:
    """Who gives way, and how; those beyond `most` as a number."""
    others = len(plan.victims) - most
    return ", ".join(map(_victim, plan.victims[:most])) + (f" and {others} more" if others > 0 else "")


def _victim(victim: Victim) -> str:
    where = f" to {victim.to}" if victim.to else ""
    return f"{victim.namespace}/{victim.name} {_DOES[victim.action]}{where}"


def _pods(count: int) -> str:
    return f"{count} pod{'s' if count > 1 else ''}"
