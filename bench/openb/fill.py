"""The published experiment: pods arrive in a given order until 130 % of the GPUs are asked for; none leaves."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from bench.openb.trace import Arrivals, Pods, Trace, make_book, ranked
from bench.policies import Fgd
from services.placement.engine.engine import Engine
from shared.model.grant import Grant

COLUMNS = (80, 90, 95, 100, 130)


class Run(msgspec.Struct, frozen=True):
    """Allocation by column: the mean over the arrivals whose load lies in that percent; and the whole curve for a
    plot."""

    seed: int
    allocation_percent: dict[str, float]
    decisions: int
    seconds: float
    curve: list[tuple[float, float, float]]
    """Load, allocation, and the part of the free GPU that no pod of the trace's mix could use, in percent of
    capacity."""


def make_engine(trace: Trace, arrivals: Arrivals, pods: Pods, policy: str) -> Engine:
    book = make_book(ranked(trace, arrivals.ranks))
    engine = Engine(book, policy)
    fgd = engine.policies[policy]
    if isinstance(fgd, Fgd):
        fgd.expect([pods.template(pod) for pod in trace.pods])
    return engine


def fill(
    trace: Trace, arrivals: Arrivals, seed: int, policy: str, lost: Callable[[Engine], float] | None = None
) -> Run:
    """One run. `lost` gives the fragmentation for the curve; it takes its time."""
    pods = Pods(trace)
    engine = make_engine(trace, arrivals, pods, policy)
    book = engine.book
    asked = given = 0
    buckets: dict[int, list[float]] = {}
    curve: list[tuple[float, float, float]] = []
    began = time.perf_counter()
    for number, index in enumerate(arrivals.pods):
        pod = trace.pods[index]
        state = pods.arrive(pod, book)
        given += place(engine, state, number) * pod.total_milli
        asked += pod.total_milli
        load, allocation = 100 * asked / trace.capacity_milli, 100 * given / trace.capacity_milli
        buckets.setdefault(round(load), []).append(allocation)
        if lost is not None and (not curve or load >= curve[-1][0] + 1):
            curve.append((load, allocation, 100 * lost(engine) / trace.capacity_milli))
    seconds = time.perf_counter() - began
    means = {
        str(column): round(sum(b) / len(b), 3) if (b := buckets.get(column)) else float("nan") for column in COLUMNS
    }
    return Run(seed, means, len(arrivals.pods), round(seconds, 3), curve)


def place(engine: Engine, state, number: int) -> bool:  # type: ignore[no-untyped-def]
    """What the service does with a waiting pod: decide, learn, hold."""
    found = engine.decide(state)
    engine.meet(state, placed=found is not None)
    engine.forget(state.uid)
    if found is None:
        del engine.book.pods[state.uid]
        return False
    engine.book.hold(
        state.uid,
        found.node,
        Grant(grant_id=f"g{number}", term=1, containers=found.containers) if found.containers else None,
    )
    return True
