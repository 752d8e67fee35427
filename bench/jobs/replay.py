"""The clock: jobs arrive, run, slow each other down, and end. Pure; the scheduler decides which job goes where.

Time is in seconds since the beginning of the trace. A job runs at full speed while it has its GPUs to itself. While any
of them is shared it takes 1 + `interference` times as long, whatever the others are and however many. An evicted job
begins anew. Deciding, binding, starting and ending take no time, on either side.
"""

from __future__ import annotations

import heapq
from typing import Protocol

import msgspec

from bench.jobs.trace import Job
from bench.openb.trace import GPU_MIB
from shared.model.units import WHOLE_GPU_MILLI


class Share(msgspec.Struct, frozen=True):
    """What a job gets of one GPU."""

    gpu: int
    milli: int
    mib: int


class Start(msgspec.Struct, frozen=True):
    job: int
    shares: tuple[Share, ...]


class Evict(msgspec.Struct, frozen=True):
    """What it has done is lost; it waits again."""

    job: int


class End(msgspec.Struct, frozen=True):
    job: int


Move = Start | Evict | End
"""Jobs are named by their place in the list."""


class Scheduler(Protocol):
    def step(self, now_s: float, ended: list[int], arrived: list[int]) -> list[Start | Evict]:
        """What is done at this instant, in order. Of several arrivals the older one stands first."""


class Impossible(RuntimeError):
    """A scheduler has given away more than there is, or left a job waiting for ever."""


class Told(msgspec.Struct):
    """What became of a job."""

    end_s: float = 0.0
    ran_s: float = 0.0
    """On GPUs, what was lost included."""
    evictions: int = 0
    lost_milli_s: float = 0.0
    """GPU share times the run time that an eviction took."""


class _Running(msgspec.Struct):
    shares: tuple[Share, ...]
    began_s: float
    left_s: float
    """At full speed, as of `since_s`."""
    since_s: float
    rate: float = 0.0
    stamp: int = 0


class Replay:
    def __init__(self, jobs: tuple[Job, ...], gpus: int, interference: float) -> None:
        self._jobs, self._slow = jobs, 1 / (1 + interference)
        self._on: list[set[int]] = [set() for _ in range(gpus)]
        self._free = [Share(gpu, WHOLE_GPU_MILLI, GPU_MIB) for gpu in range(gpus)]
        self._running: dict[int, _Running] = {}
        self._ends: list[tuple[float, int, int]] = []
        """When, whose, and by which of its stamps; an old stamp is void."""
        self._stamp = 0
        self._touched: set[int] = set()
        self.told = [Told() for _ in jobs]
        self.log: list[tuple[float, Move]] = []

    def run(self, scheduler: Scheduler) -> list[Told]:
        """Until the last job has ended. Raises Impossible."""
        came = 0
        while came < len(self._jobs) or self._ends:
            ends_s = self._ends[0][0] if self._ends else float("inf")
            now = min(ends_s, self._jobs[came].created_s) if came < len(self._jobs) else ends_s
            ended, arrived = self._take_ended(now), []
            while came < len(self._jobs) and self._jobs[came].created_s <= now:
                arrived.append(came)
                came += 1
            for move in scheduler.step(now, ended, arrived):
                self._apply(move, now)
            self._pace(now)
        waiting = sum(1 for told in self.told if not told.end_s)
        if waiting:
            raise Impossible(f"{waiting} jobs were never done")
        return self.told

    def _take_ended(self, now: float) -> list[int]:
        ended = []
        while self._ends and self._ends[0][0] <= now:
            _, job, stamp = heapq.heappop(self._ends)
            if job in self._running and self._running[job].stamp == stamp:
                ended.append(job)
                self._leave(job, now)
                self.told[job].end_s = now
                self.log.append((now, End(job)))
        self._drop_void()
        return sorted(ended)

    def _apply(self, move: Start | Evict, now: float) -> None:
        self.log.append((now, move))
        if isinstance(move, Evict):
            ran_s = self._leave(move.job, now)
            told, job = self.told[move.job], self._jobs[move.job]
            told.evictions += 1
            told.lost_milli_s += job.gpus * job.milli * ran_s
            return
        if move.job in self._running or self.told[move.job].end_s or self._jobs[move.job].created_s > now:
            raise Impossible(f"{self._jobs[move.job].name} was started and does not wait")
        for share in move.shares:
            self._book(share, -1)
            self._on[share.gpu].add(move.job)
            self._touched.add(share.gpu)
        self._running[move.job] = _Running(move.shares, now, self._jobs[move.job].run_s, now)

    def _leave(self, job: int, now: float) -> float:
        """It is on no GPU any more; returns how long it was."""
        left = self._running.pop(job)
        for share in left.shares:
            self._book(share, +1)
            self._on[share.gpu].discard(job)
            self._touched.add(share.gpu)
        self.told[job].ran_s += now - left.began_s
        return now - left.began_s

    def _book(self, share: Share, sign: int) -> None:
        free = self._free[share.gpu]
        left = Share(free.gpu, free.milli + sign * share.milli, free.mib + sign * share.mib)
        if min(left.milli, left.mib) < 0:
            raise Impossible(
                f"GPU {share.gpu} is given away twice: {left.milli} thousandths and {left.mib} MiB would be left"
            )
        self._free[share.gpu] = left

    def _pace(self, now: float) -> None:
        """A job whose GPUs have fewer or more jobs than before is faster or slower from now on."""
        for job in sorted({job for gpu in self._touched for job in self._on[gpu]}):
            running = self._running[job]
            rate = self._slow if any(len(self._on[share.gpu]) > 1 for share in running.shares) else 1.0
            if rate == running.rate:
                continue
            running.left_s -= (now - running.since_s) * running.rate
            self._stamp += 1
            running.since_s, running.rate, running.stamp = now, rate, self._stamp
            heapq.heappush(self._ends, (now + running.left_s / rate, job, self._stamp))
        self._touched.clear()
        self._drop_void()

    def _drop_void(self) -> None:
        while self._ends and (
            self._ends[0][1] not in self._running or self._running[self._ends[0][1]].stamp != self._ends[0][2]
        ):
            heapq.heappop(self._ends)
