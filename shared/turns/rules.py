"""Who takes the next turn: queues of levels by attained GPU time (Tiresias, NSDI 2019, discretised 2D-LAS). Pure.

A job is a pod, or a gang as a whole. A new job is at level 0, and falls a level whenever its GPU time passes a bound.
A waiting job takes the turn of a running one of a higher-numbered level, once that has run for `min_turn_s`. Within a
level the first to wait is the first to run, and none yields to another. A job that has waited for `max_wait_s` is
overdue: it goes before all levels, the longest wait first, may end any turn that has lasted `min_turn_s`, and begins
again at level 0. A running job that is idle yields to any other at once.

A job whose programs bear a suspension only for a time (a watchdog ends them) is suspended for no longer: shortly before
it goes first of all, the earliest end first, and keeps its level.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from math import inf

import msgspec

DUE_BACK = -2
"""The level of a suspended job whose watchdog would soon end it."""
OVERDUE = -1
"""The level of a job that has waited too long."""
IDLE = 1_000
"""The level of a running job that is idle: its turn ends first, and for every other."""
WATCHDOG_TURNS = 5
"""A job may ask to be back after so many of the shortest turns, and no earlier."""
_BACK_TURNS = 2
"""It goes first so many shortest turns before its bound: one for the job that runs, one for the copies."""


class TurnRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The block `turns` of queues.yaml."""

    level_bounds_gpu_s: tuple[int, ...] = (600, 3_600, 21_600, 129_600, 777_600, 4_665_600)
    """Attained GPU-seconds at which a job falls to the next level; ascending. The defaults are six times the one
    before, because run times are spread over so many orders of magnitude (docs/decisions/0243)."""
    min_turn_s: int = 120
    """A turn lasts at least so long, from the moment at which the job runs."""
    max_wait_s: int = 86_400
    """A job that has waited for so long goes first."""
    watchdog_s: int = 600
    """A gang that says nothing of watchdogs is suspended for so long at most; 0: no bound. Never less than five times
    `min_turn_s`."""

    def __post_init__(self) -> None:
        bounds = self.level_bounds_gpu_s
        if not bounds or bounds[0] <= 0 or any(a >= b for a, b in pairwise(bounds)):
            raise ValueError(f"level_bounds_gpu_s is {list(bounds)}; write numbers above 0, each above the one before")
        if self.watchdog_s < 0:
            raise ValueError(f"watchdog_s is {self.watchdog_s}; write 0 for no bound, or seconds")
        if self.min_turn_s < 1 or self.max_wait_s < self.min_turn_s:
            raise ValueError(
                f"min_turn_s is {self.min_turn_s} and max_wait_s {self.max_wait_s}; write at least 1, and no shorter a "
                "wait than a turn"
            )

    @property
    def least_watchdog_s(self) -> int:
        """The shortest bound on a suspension that is kept. A shorter one would leave no turns to others."""
        return WATCHDOG_TURNS * self.min_turn_s


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at."""

    key: str
    attained_gpu_ms: int
    """Since it was last lifted to level 0."""
    since: float
    """Running or waiting since then, in seconds since 1970."""
    idle: bool = False
    """It has the GPU and does not use it, or it is suspended and nothing of it waits for the GPU."""
    bound_s: float = inf
    """Of a suspended job: it runs again within so many seconds, because a watchdog would end it; infinite: no bound."""


def level(job: Job, rules: TurnRules) -> int:
    """The level by attained GPU time alone; 0 is served first."""
    return bisect_right(rules.level_bounds_gpu_s, job.attained_gpu_ms / 1000)


def end_level(running: Job, rules: TurnRules) -> int:
    """The level at which a running job's turn ends: the highest goes first."""
    return IDLE if running.idle else level(running, rules)


def overdue_at(waiting: Job, rules: TurnRules) -> float:
    """When it will have waited for too long, in seconds since 1970."""
    return waiting.since + rules.max_wait_s


def is_overdue(waiting: Job, rules: TurnRules, now: float) -> bool:
    return now >= overdue_at(waiting, rules)


def due_back_at(waiting: Job, rules: TurnRules) -> float:
    """When a suspended job goes first because of its watchdog, in seconds since 1970; infinite: never."""
    return waiting.since + waiting.bound_s - _BACK_TURNS * rules.min_turn_s


def changes_at(waiting: Job, rules: TurnRules) -> tuple[float, ...]:
    """When its rank changes by time alone, in seconds since 1970."""
    return (overdue_at(waiting, rules), due_back_at(waiting, rules))


def rank(waiting: Job, rules: TurnRules, now: float) -> tuple[int, float, str]:
    """The order in which waiting jobs are served, the smallest first."""
    if now >= due_back_at(waiting, rules):
        return (DUE_BACK, waiting.since + waiting.bound_s, waiting.key)
    at = OVERDUE if is_overdue(waiting, rules, now) else level(waiting, rules)
    return (at, waiting.since, waiting.key)


def most_with_watchdogs(bound_s: float, rules: TurnRules) -> float:
    """How many jobs with such a bound one GPU can serve beside a job without one; infinite if there is no bound.

    Each of them is away while the others have a turn, and a quarter of a turn is for copies.
    """
    return inf if bound_s == inf else bound_s // (1.25 * rules.min_turn_s) - 1


def yields(running: Job, waiting: Job, rules: TurnRules, now: float) -> bool:
    """Whether a running job's turn ends for a waiting one's."""
    return end_level(running, rules) > rank(waiting, rules, now)[0] and (
        running.idle or now - running.since >= rules.min_turn_s
    )
