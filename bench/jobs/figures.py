"""What is said of a run, and what no scheduler could better."""

from __future__ import annotations

import heapq
from collections import defaultdict
from math import ceil, inf
from statistics import fmean

import msgspec

from bench.jobs.replay import Told
from bench.jobs.trace import Job
from shared.model.units import WHOLE_GPU_MILLI

_WAYS = 21
"""Ways of costing that are tried for the bound."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Completion is from a job's arrival to its end, waiting whatever of that it is on no GPU."""

    mean_completion_s: float
    p99_completion_s: float
    makespan_s: float
    """From the beginning of the trace to the last end."""
    gpu_utilisation: float
    """0 to 1: GPU share asked for times original run time, over GPUs times makespan."""
    mean_wait_s: float
    wait_by_qos: dict[str, float]
    """The mean of each class."""
    evictions: int
    gpu_seconds_lost: float
    """GPU share times the run time that evictions took."""
    turns: int
    """Suspensions."""
    host_memory_mib_peak: int
    """Most that suspended jobs had on the host at once."""
    gpu_hours_lost_in_copies: float
    """GPU share times the time of all copies, in both directions."""
    longest_wait_s: float
    """Longest time at a stretch that a job was on no GPU."""
    longest_suspension_s: float
    """The same of jobs that had run: how long one waited for its next turn at most."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A bound that no scheduler beats, even one that knows all run times."""

    mean_completion_s: float
    makespan_s: float
    gpu_utilisation: float


def figures(jobs: tuple[Job, ...], told: list[Told], gpus: int, host_mib_peak: int = 0) -> Figures:
    completion = sorted(one.end_s - job.created_s for job, one in zip(jobs, told, strict=True))
    waits: defaultdict[str, list[float]] = defaultdict(list)
    for job, one in zip(jobs, told, strict=True):
        waits[job.qos].append(one.end_s - job.created_s - one.ran_s)
    makespan_s = max(one.end_s for one in told)
    return Figures(
        mean_completion_s=round(fmean(completion), 1),
        p99_completion_s=round(completion[ceil(0.99 * len(completion)) - 1], 1),
        makespan_s=round(makespan_s, 1),
        gpu_utilisation=_utilisation(jobs, gpus, makespan_s),
        mean_wait_s=round(fmean(wait for of in waits.values() for wait in of), 1),
        wait_by_qos={qos: round(fmean(of), 1) for qos, of in sorted(waits.items())},
        evictions=sum(one.evictions for one in told),
        gpu_seconds_lost=round(sum(one.lost_milli_s for one in told) / WHOLE_GPU_MILLI, 1),
        turns=sum(one.turns for one in told),
        host_memory_mib_peak=host_mib_peak,
        gpu_hours_lost_in_copies=round(sum(one.copied_milli_s for one in told) / WHOLE_GPU_MILLI / 3600, 1),
        longest_wait_s=round(max(one.longest_wait_s for one in told), 1),
        longest_suspension_s=round(max(one.longest_suspension_s for one in told), 1),
    )


def bound(jobs: tuple[Job, ...], gpus: int, interference: float, *, whole: bool = False) -> Bound:
    """`whole`: the bound for schedulers that give whole GPUs alone.

    Makespan: no job can have run for longer than since it came, and what is left at any instant takes at least its cost
    over the GPUs, for each way of costing below. Mean completion: one machine as fast as all GPUs together, on which
    any job may use all of it and the one with the least left goes first, is no slower; and no job is done before its
    run time is over.
    """
    ways = [
        [1.0 if whole else _cost(job.milli, k, interference) for job in jobs]
        for k in (range(1) if whole else range(_WAYS))
    ]
    makespan_s = max(_makespan(jobs, costs, gpus) for costs in ways)
    mean_s = max(_shortest_first(jobs, ways[0], gpus), fmean(job.run_s for job in jobs))
    return Bound(
        mean_completion_s=round(mean_s, 1),
        makespan_s=round(makespan_s, 1),
        gpu_utilisation=_utilisation(jobs, gpus, makespan_s),
    )


def _cost(milli: int, k: int, interference: float) -> float:
    """What a second's run of a slice takes of a GPU's time: all of it alone; shared its part for 1 + `interference`
    times as long; whichever is less.

    For k of 1 and more the part is a dual feasible function of it (Fekete and Schepers, Mathematical Programming 91,
    2001, u^(k)): those of any slices that fit on one GPU come to no more than 1, and it sees that three of 460 do not.
    """
    parts, rest = divmod((k + 1) * milli, WHOLE_GPU_MILLI)
    part = milli / WHOLE_GPU_MILLI if not rest or not k else parts / k
    return min(1.0, part * (1 + interference))


def _makespan(jobs: tuple[Job, ...], costs: list[float], gpus: int) -> float:
    rates = [job.gpus * cost for job, cost in zip(jobs, costs, strict=True)]
    left = sum(rate * job.run_s for job, rate in zip(jobs, rates, strict=True))
    changes = [(job.created_s, rate) for job, rate in zip(jobs, rates, strict=True)]
    changes += [(job.created_s + job.run_s, -rate) for job, rate in zip(jobs, rates, strict=True)]
    least_s, demand, last_s = 0.0, 0.0, 0
    for at_s, change in sorted(changes):
        left -= demand * (at_s - last_s)
        demand, last_s = demand + change, at_s
        least_s = max(least_s, at_s + left / gpus)
    return least_s


def _shortest_first(jobs: tuple[Job, ...], costs: list[float], gpus: int) -> float:
    """Mean completion where the job with the least left has all GPUs."""
    left: list[tuple[float, int]] = []
    now = total = 0.0
    for job, cost in (*zip(jobs, costs, strict=True), (None, 0.0)):
        until = inf if job is None else float(job.created_s)
        while left and now < until:
            work, created_s = heapq.heappop(left)
            ends_s = now + work / gpus
            if ends_s > until:
                heapq.heappush(left, (work - (until - now) * gpus, created_s))
                break
            now, total = ends_s, total + ends_s - created_s
        now = max(now, until)
        if job is not None:
            heapq.heappush(left, (job.gpus * cost * job.run_s, job.created_s))
    return total / len(jobs)


def _utilisation(jobs: tuple[Job, ...], gpus: int, makespan_s: float) -> float:
    return round(sum(job.work_milli_s for job in jobs) / (gpus * WHOLE_GPU_MILLI * makespan_s), 4)
