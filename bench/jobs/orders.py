"""Which job goes first, and which running job yields to it: what the schedulers of `bench/jobs/in_turns.py` differ in.

`Attained` is Tiresias' discretised 2D-LAS by the rules that Kerf has (shared/turns/rules.py), and knows no run time.
The others are oracles, which know them all.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from bench.jobs.trace import Job
from shared.model.units import WHOLE_GPU_MILLI
from shared.turns.rules import Job as Known
from shared.turns.rules import TurnRules, level, rank, yields

Rank = tuple[float, float, str]


class Had(msgspec.Struct):
    """What a job has had so far."""

    key: str
    """In the order of arrival."""
    since_s: float
    """Running or waiting since then."""
    ran_s: float = 0.0
    """On GPUs, in all earlier turns."""
    lifted_s: float = 0.0
    """How much of `ran_s` was before it had last waited too long."""


class Order(Protocol):
    preempts: bool
    lifts: bool
    """Whether a job that was overdue begins again at level 0."""

    def group(self, job: Job, waiting: Had) -> int:
        """Waiting jobs of one group and shape are served in the order of `within`; neither changes while they wait."""

    def within(self, job: Job, waiting: Had) -> float: ...

    def rank(self, job: Job, waiting: Had, now: float) -> Rank:
        """The smallest is served first."""

    def is_overdue(self, waiting: Had, now: float) -> bool:
        """Whether none may pass it."""

    def yields(self, running: tuple[Job, Had], waiting: tuple[Job, Had], now: float) -> bool: ...

    def worst(self, job: Job, running: Had, now: float) -> tuple[float, ...]:
        """The smallest yields first."""

    def changes_s(self, job: Job, had: Had, now: float, *, runs: bool) -> float:
        """When it may yield, or is overdue, without anything happening; infinite for never again."""


class Attained(Order):
    preempts = True

    def __init__(self, rules: TurnRules, *, lifts: bool = True) -> None:
        self._rules, self.lifts = rules, lifts

    def group(self, job: Job, waiting: Had) -> int:
        return level(self._known(job, waiting, waiting.since_s, runs=False), self._rules)

    def within(self, job: Job, waiting: Had) -> float:
        del job
        return waiting.since_s

    def rank(self, job: Job, waiting: Had, now: float) -> Rank:
        return rank(self._known(job, waiting, now, runs=False), self._rules, now)

    def is_overdue(self, waiting: Had, now: float) -> bool:
        return now - waiting.since_s >= self._rules.max_wait_s

    def yields(self, running: tuple[Job, Had], waiting: tuple[Job, Had], now: float) -> bool:
        return yields(self._known(*running, now, runs=True), self._known(*waiting, now, runs=False), self._rules, now)

    def worst(self, job: Job, running: Had, now: float) -> tuple[float, ...]:
        return (-level(self._known(job, running, now, runs=True), self._rules), running.since_s)

    def changes_s(self, job: Job, had: Had, now: float, *, runs: bool) -> float:
        if not runs:
            return had.since_s + self._rules.max_wait_s
        falls = []
        for bound in self._rules.level_bounds_gpu_s:
            ran_s = bound / (job.gpus * job.milli / WHOLE_GPU_MILLI)
            falls.append(had.since_s + ran_s - (had.ran_s - had.lifted_s) + 0.001)
        return min((at for at in (had.since_s + self._rules.min_turn_s, *falls) if at > now), default=float("inf"))

    def _known(self, job: Job, had: Had, now: float, *, runs: bool) -> Known:
        ran_s = had.ran_s - had.lifted_s + (now - had.since_s if runs else 0)
        return Known(key=had.key, attained_gpu_ms=round(ran_s * job.gpus * job.milli), since=had.since_s)


class ShortestFirst(Order):
    """The shortest run time first. No job yields."""

    preempts = False
    lifts = False

    def group(self, job: Job, waiting: Had) -> int:
        del job, waiting
        return 0

    def within(self, job: Job, waiting: Had) -> float:
        return job.run_s - waiting.ran_s

    def rank(self, job: Job, waiting: Had, now: float) -> Rank:
        del now
        return (self.within(job, waiting), 0.0, waiting.key)

    def is_overdue(self, waiting: Had, now: float) -> bool:
        del waiting, now
        return False

    def yields(self, running: tuple[Job, Had], waiting: tuple[Job, Had], now: float) -> bool:
        del running, waiting, now
        return False

    def worst(self, job: Job, running: Had, now: float) -> tuple[float, ...]:
        return (-self._left(job, running, now),)

    def changes_s(self, job: Job, had: Had, now: float, *, runs: bool) -> float:
        del job, had, now, runs
        return float("inf")

    def _left(self, job: Job, running: Had, now: float) -> float:
        return max(0.0, job.run_s - running.ran_s - (now - running.since_s))


class ShortestLeft(ShortestFirst):
    """The shortest remaining time first (SRTF): a job with more left yields, once it has run for the shortest turn."""

    preempts = True

    def __init__(self, min_turn_s: float) -> None:
        self._min_turn_s = min_turn_s

    def yields(self, running: tuple[Job, Had], waiting: tuple[Job, Had], now: float) -> bool:
        return now - running[1].since_s >= self._min_turn_s and self._left(*running, now) > self.within(*waiting)

    def changes_s(self, job: Job, had: Had, now: float, *, runs: bool) -> float:
        del job
        at = had.since_s + self._min_turn_s
        return at if runs and at > now else float("inf")
