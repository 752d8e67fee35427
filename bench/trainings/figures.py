"""What the steps of trainings tell: speed, the time from an order to full speed, and losses that differ. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

import msgspec

STEPS, PART = 3, 0.95


class Step(msgspec.Struct, frozen=True):
    number: int
    end_ns: int
    loss: str


def steps_of(log: str) -> list[Step]:
    """The steps of a log; a line that is still being written is left out."""
    return [Step(int(number), int(end), loss) for number, end, loss in map(str.split, log.split("\n")[:-1])]


def between(steps: Sequence[Step], from_ns: int, to_ns: int) -> int:
    """How many steps ended in that time."""
    ends = [step.end_ns for step in steps]
    return bisect_left(ends, to_ns) - bisect_left(ends, from_ns)


def step_ns(steps: Sequence[Step]) -> int:
    """The median length of a step."""
    return round(median(b.end_ns - a.end_ns for a, b in pairwise(steps)))


def full_speed_ns(steps: Sequence[Step], since_ns: int, alone_ns: int) -> tuple[int, int] | None:
    """Of a training that an order at `since_ns` lets run: the time until its first step has begun again, and until the
    first of three steps in a row that take no longer than alone, to 95 %. None: it has not come so far."""
    ends = [step.end_ns for step in steps if step.end_ns >= since_ns]
    for first in range(len(ends) - STEPS):
        if ends[first + STEPS] - ends[first] <= STEPS * alone_ns / PART:
            return max(0, ends[0] - since_ns - alone_ns), max(0, ends[first] - since_ns)
    return None


def different(runs: Iterable[Sequence[Step]]) -> tuple[int, int]:
    """Of runs that should have the same losses: at how many steps that two or more have reached they were compared, and
    at how many of them they differ."""
    by_number: dict[int, list[str]] = {}
    for run in runs:
        for step in run:
            by_number.setdefault(step.number, []).append(step.loss)
    compared = [losses for losses in by_number.values() if len(losses) > 1]
    return len(compared), sum(len(set(losses)) > 1 for losses in compared)
