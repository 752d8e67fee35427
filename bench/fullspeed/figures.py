"""Computes when work runs at full speed, from the end times of its kernels. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

WINDOW_NS, WINDOWS, PART = 100_000_000, 3, 0.95


def rate_per_s(done_ns: Sequence[int], after_ns: int) -> float:
    """Returns the kernels per second after that time. The first kernel after it only marks the beginning."""
    first = bisect_left(done_ns, after_ns)
    return (len(done_ns) - 1 - first) * 1e9 / (done_ns[-1] - done_ns[first])


def full_speed_ns(done_ns: Sequence[int], since_ns: int, alone_per_s: float, step_ns: int = 1_000_000) -> int | None:
    """Returns the nanoseconds from `since_ns` to the first of three consecutive windows with 95 % of the throughput
    alone.

    Returns None if there are no such windows. The resolution is `step_ns`.
    """
    enough = alone_per_s * PART * WINDOW_NS / 1e9
    at = since_ns
    while done_ns and at + WINDOWS * WINDOW_NS <= done_ns[-1]:
        ends = [bisect_left(done_ns, at + number * WINDOW_NS) for number in range(WINDOWS + 1)]
        if all(ends[i + 1] - ends[i] >= enough for i in range(WINDOWS)):
            return at - since_ns
        at += step_ns
    return None


def percentile(values: Sequence[float], part: float) -> float:
    """Returns the smallest value that is not exceeded by that part of the values."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(part * 1000) * len(ordered) // 1000) - 1)]
