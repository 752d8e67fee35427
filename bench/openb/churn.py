"""Pods that come and go: exponential lives, and more load offered than there is room.

Pods of the trace's mix arrive at random and are tried once. Time is in mean lives. The first three are for settling and
not counted; allocation is the mean over time, refusal the part of the demand (in GPUs; for pods without, in pods) that
found no place, by the size of pods.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter

import msgspec

from bench.openb.fill import make_engine, place
from bench.openb.trace import Arrivals, Pods, Trace

SETTLE_LIVES = 3.0
COUNTED_LIVES = 5.0


class ChurnRun(msgspec.Struct, frozen=True):
    seed: int
    offered: float
    """Load offered, as a multiple of the capacity."""
    allocation_percent: float
    refused_percent: dict[str, float]
    refused_demand_percent: float
    decisions: int
    seconds: float


def churn(
    trace: Trace, arrivals: Arrivals, seed: int, policy: str, offered: float, lives: float = COUNTED_LIVES
) -> ChurnRun:
    random_ = random.Random(f"{trace.name} {seed} {offered}")
    pods = Pods(trace)
    engine = make_engine(trace, arrivals, pods, policy)
    rate = offered * trace.capacity_milli / (sum(pod.total_milli for pod in trace.pods) / len(trace.pods))
    now = counted_from = last = 0.0
    area = 0.0
    used = number = 0
    ends: list[tuple[float, str, int]] = []
    asked: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    began = time.perf_counter()

    def pass_time(until: float) -> None:
        nonlocal area, last
        area += used * max(0.0, until - max(last, SETTLE_LIVES))
        last = until

    while now < SETTLE_LIVES + lives:
        now += random_.expovariate(rate)
        pod, life = trace.pods[random_.randrange(len(trace.pods))], random_.expovariate(1.0)
        while ends and ends[0][0] <= now:
            ended, uid, milli = heapq.heappop(ends)
            pass_time(ended)
            engine.book.unhold(uid)
            del engine.book.pods[uid]
            used -= milli
        pass_time(now)
        state = pods.arrive(pod, engine.book)
        number += 1
        found = place(engine, state, number)
        if found:
            used += pod.total_milli
            heapq.heappush(ends, (now + life, state.uid, pod.total_milli))
        if now >= SETTLE_LIVES:
            counted_from = counted_from or now
            asked[pod.size] += pod.total_milli or 1
            refused[pod.size] += 0 if found else pod.total_milli or 1
    of_gpus = [size for size in asked if size != "cpu-only"]
    return ChurnRun(
        seed,
        offered,
        round(100 * area / lives / trace.capacity_milli, 3),
        {size: round(100 * refused[size] / asked[size], 3) for size in sorted(asked)},
        round(100 * sum(refused[s] for s in of_gpus) / sum(asked[s] for s in of_gpus), 3),
        number,
        round(time.perf_counter() - began, 3),
    )
