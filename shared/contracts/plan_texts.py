"""Describes plans in sentences, which Events, answers and the command line share."""

from __future__ import annotations

from shared.contracts.preemption import ENDS, Action, Plan, Victim
from shared.model.life import DEFAULT_GRACE_S

_TIME = "lose nothing but time"
_FOR_A_WHILE: dict[Action, tuple[str, str]] = {
    "throttle": ("be throttled", _TIME),
    "pause": ("be paused", _TIME),
    "shrink": ("give up GPU memory that they do not use", "lose nothing unless they grow"),
    "checkpoint": ("be checkpointed to host memory", _TIME),
}
_DOES: dict[Action, str] = {
    "throttle": "is throttled",
    "pause": "is paused",
    "shrink": "gives up GPU memory",
    "checkpoint": "is checkpointed",
    "move": "is migrated",
    "evict": "is evicted",
}


def describe_price(plan: Plan) -> str:
    """Says how many victims a plan has, what happens to them, and what they lose."""
    ends = sum(victim.action in ENDS for victim in plan.victims)
    stays = len(plan.victims) - ends
    migrated = sum(victim.action == "move" for victim in plan.victims)
    again = f" ({migrated} with capacity reserved elsewhere)" if migrated else ""
    grace_s = max((victim.grace_s for victim in plan.victims), default=0)
    slowly = f", with up to {grace_s} s to terminate" if grace_s > DEFAULT_GRACE_S else ""
    parts = (
        [f"{_pods(ends)} would be evicted{again} and lose {plan.price_gpu_seconds} GPU-seconds{slowly}"] if ends else []
    )
    if stays:
        does, loses = _FOR_A_WHILE[next(victim.action for victim in plan.victims if victim.action not in ENDS)]
        parts.append(f"{_pods(stays)} would {does} for a while and {loses}")
    return "; ".join(parts)


def list_victims(plan: Plan, max_named: int = 3) -> str:
    """Lists the victims with what happens to each; those beyond `max_named` as a number."""
    others = len(plan.victims) - max_named
    return ", ".join(map(_victim, plan.victims[:max_named])) + (f" and {others} more" if others > 0 else "")


def _victim(victim: Victim) -> str:
    where = f" to {victim.to}" if victim.to else ""
    return f"{victim.namespace}/{victim.name} {_DOES[victim.action]}{where}"


def _pods(count: int) -> str:
    return f"{count} pod{'s' if count > 1 else ''}"
