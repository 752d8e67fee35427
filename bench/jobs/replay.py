"""The clock: jobs arrive, run, slow each other down, and end. Pure; the scheduler decides which job goes where.

Time is in seconds since the beginning of the trace. A job runs at full speed while it has its GPUs to itself. While any
of them is shared it takes 1 + `interference` times as long, whatever the others are and however many. An evicted job
begins anew. Deciding, binding, starting and ending take no time, on either side.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from random import Random
from typing import Literal, Protocol

import msgspec

from bench.jobs.costs import Costs
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


class Suspend(msgspec.Struct, frozen=True):
    """Nothing of it is lost; it waits until it is resumed."""

    job: int
    to: Literal["gpu", "host"]
    """Where its GPU memory is meanwhile."""


class Resume(msgspec.Struct, frozen=True):
    job: int
    shares: tuple[Share, ...]
    """As many as it had; on the same GPUs where its memory is on those."""


class End(msgspec.Struct, frozen=True):
    job: int


class Copied(msgspec.Struct, frozen=True):
    """A copy is over: to the host, or back on the GPU, or the suspension has failed and the job runs on."""

    job: int
    outcome: Literal["parked", "back", "failed"]


Order = Start | Evict | Suspend | Resume
Move = Order | End | Copied
"""Jobs are named by their place in the list."""


class Scheduler(Protocol):
    def step(self, now_s: float, ended: list[int], arrived: list[int]) -> Sequence[Order]:
        """What is done at this instant, in order. Of several arrivals the older one stands first."""

    def copied(self, copied: list[Copied]) -> None:
        """Copies that are over; before the `step` of the same instant."""
        del copied

    def wakes_s(self, now_s: float) -> float:
        """When `step` is wanted although nothing happens by then."""
        del now_s
        return float("inf")


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
    turns: int = 0
    """How often it was suspended."""
    copied_milli_s: float = 0.0
    """GPU share times the time of its copies, failed suspensions included."""
    waits_since_s: float | None = None
    longest_wait_s: float = 0.0
    longest_suspension_s: float = 0.0
    """The same, after it had run."""


class _Running(msgspec.Struct):
    shares: tuple[Share, ...]
    began_s: float
    left_s: float
    """At full speed, as of `since_s`."""
    since_s: float
    rate: float = 0.0
    stamp: int = 0
    copies: bool = False


class _Suspended(msgspec.Struct, frozen=True):
    shares: tuple[Share, ...]
    left_s: float
    to: Literal["gpu", "host"]


class Replay:
    def __init__(self, jobs: tuple[Job, ...], gpus: int, interference: float, costs: Costs | None = None) -> None:
        self._jobs, self._slow, self._costs = jobs, 1 / (1 + interference), costs or Costs()
        self._random = Random(self._costs.seed)
        self._suspended: dict[int, _Suspended] = {}
        self._copies: list[tuple[float, int, Literal["parked", "back", "failed"]]] = []
        self._host: dict[int, int] = {}
        """What the jobs have on the host, in MiB; from the beginning of one copy to the end of the other."""
        self.host_mib_peak = 0
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
        came, wakes_s = 0, float("inf")
        while came < len(self._jobs) or self._ends or self._copies or wakes_s < float("inf"):
            now = min(
                self._ends[0][0] if self._ends else float("inf"),
                self._copies[0][0] if self._copies else float("inf"),
                self._jobs[came].created_s if came < len(self._jobs) else float("inf"),
                wakes_s,
            )
            ended, arrived = self._take_ended(now), []
            if copied := self._take_copied(now):
                scheduler.copied(copied)
            while came < len(self._jobs) and self._jobs[came].created_s <= now:
                self.told[came].waits_since_s = self._jobs[came].created_s
                arrived.append(came)
                came += 1
            for move in scheduler.step(now, ended, arrived):
                self._apply(move, now)
            self._pace(now)
            wakes_s = scheduler.wakes_s(now)
            if wakes_s <= now:
                raise Impossible(f"the scheduler wants to be woken at {wakes_s}, and it is {now}")
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

    def _take_copied(self, now: float) -> list[Copied]:
        over = []
        while self._copies and self._copies[0][0] <= now:
            _, job, outcome = heapq.heappop(self._copies)
            running = self._running[job]
            running.copies = False
            self._touched.update(share.gpu for share in running.shares)
            if outcome == "parked":
                self._leave(job, now)
                self._suspended[job] = _Suspended(running.shares, running.left_s, "host")
                self.told[job].turns += 1
            else:
                del self._host[job]
            over.append(Copied(job, outcome))
            self.log.append((now, over[-1]))
        return over

    def _apply(self, move: Order, now: float) -> None:
        self.log.append((now, move))
        match move:
            case Evict():
                self._evict(move.job, now)
            case Start():
                if move.job in self._running or self.told[move.job].end_s or self._jobs[move.job].created_s > now:
                    raise Impossible(f"{self._jobs[move.job].name} was started and does not wait")
                if move.job in self._suspended:
                    raise Impossible(f"{self._jobs[move.job].name} was started and is suspended")
                self._enter(move.job, move.shares, self._jobs[move.job].run_s, now)
            case Suspend():
                self._suspend(move, now)
            case Resume():
                self._resume(move, now)

    def _evict(self, job: int, now: float) -> None:
        ran_s = self._leave(job, now)
        told, of = self.told[job], self._jobs[job]
        told.evictions += 1
        told.lost_milli_s += of.gpus * of.milli * ran_s

    def _suspend(self, move: Suspend, now: float) -> None:
        running, name = self._running.get(move.job), self._jobs[move.job].name
        if running is None or running.copies:
            raise Impossible(f"{name} was suspended and does not run")
        if move.to == "gpu":
            self._settle(running, now)
            self._leave(move.job, now)
            for share in running.shares:
                self._book(Share(share.gpu, 0, share.mib), -1)
            self._suspended[move.job] = _Suspended(running.shares, running.left_s, "gpu")
            self.told[move.job].turns += 1
            return
        self._host[move.job] = self._costs.mib(self._jobs[move.job])
        taken = sum(self._host.values())
        if taken > self._costs.host_mib:
            raise Impossible(f"{name} was suspended to the host, which has {self._costs.host_mib} of {taken} MiB")
        self.host_mib_peak = max(self.host_mib_peak, taken)
        fails = self._random.random() < self._costs.failure
        self._copy(move.job, "failed" if fails else "parked", now)

    def _resume(self, move: Resume, now: float) -> None:
        was, name = self._suspended.pop(move.job, None), self._jobs[move.job].name
        if was is None:
            raise Impossible(f"{name} was resumed and is not suspended")
        if was.to == "gpu":
            if was.shares != move.shares:
                raise Impossible(f"{name} was resumed elsewhere than where its memory is")
            for share in was.shares:
                self._book(Share(share.gpu, 0, share.mib), +1)
        self._enter(move.job, move.shares, was.left_s, now)
        if was.to == "host":
            self._copy(move.job, "back", now)

    def _copy(self, job: int, outcome: Literal["parked", "back", "failed"], now: float) -> None:
        of, running = self._jobs[job], self._running[job]
        takes_s = self._costs.fixed_s if outcome == "failed" else self._costs.copy_s(of)
        self.told[job].copied_milli_s += of.gpus * of.milli * takes_s
        running.copies = True
        self._touched.update(share.gpu for share in running.shares)
        heapq.heappush(self._copies, (now + takes_s, job, outcome))

    def _enter(self, job: int, shares: tuple[Share, ...], left_s: float, now: float) -> None:
        for share in shares:
            self._book(share, -1)
            self._on[share.gpu].add(job)
            self._touched.add(share.gpu)
        self._running[job] = _Running(shares, now, left_s, now)
        told = self.told[job]
        waited_s = now - (now if told.waits_since_s is None else told.waits_since_s)
        told.longest_wait_s = max(told.longest_wait_s, waited_s)
        if told.ran_s > 0:
            told.longest_suspension_s = max(told.longest_suspension_s, waited_s)
        told.waits_since_s = None

    def _leave(self, job: int, now: float) -> float:
        """It is on no GPU any more; returns how long it was."""
        left = self._running.pop(job)
        for share in left.shares:
            self._book(share, +1)
            self._on[share.gpu].discard(job)
            self._touched.add(share.gpu)
        self.told[job].ran_s += now - left.began_s
        self.told[job].waits_since_s = now
        return now - left.began_s

    def _settle(self, running: _Running, now: float) -> None:
        """Counts what it has done at its present rate."""
        running.left_s = max(0.0, running.left_s - (now - running.since_s) * running.rate)
        running.since_s = now

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
            if running.copies:
                rate = 0.0
            if rate == running.rate:
                continue
            self._settle(running, now)
            self._stamp += 1
            running.rate, running.stamp = rate, self._stamp
            if rate:
                heapq.heappush(self._ends, (now + running.left_s / rate, job, self._stamp))
        self._touched.clear()
        self._drop_void()

    def _drop_void(self) -> None:
        while self._ends and (
            self._ends[0][1] not in self._running or self._running[self._ends[0][1]].stamp != self._ends[0][2]
        ):
            heapq.heappop(self._ends)
