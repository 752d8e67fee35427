"""A queue in a given order with suspension to the host: what Kerf's turns are compared with.

Free GPUs go to the waiting jobs in order. A job that does not fit takes the turn of running ones that yield to it, the
cheapest set that suffices: no more GPUs than necessary, then the worst in order first. What they give up is reserved
for it while they are copied. A job whose memory has no room on the host is not asked, and one whose suspension failed
is not asked for ten minutes. None may pass an overdue job that could take turns as soon as they have lasted for long
enough.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import msgspec

from bench.jobs.costs import Costs
from bench.jobs.orders import Had, Order, Rank
from bench.jobs.replay import Copied, Resume, Scheduler, Share, Start, Suspend
from bench.jobs.replay import Order as Move
from bench.jobs.trace import Job
from bench.openb.trace import GPU_MIB
from shared.model.units import WHOLE_GPU_MILLI

ASKED_AGAIN_S = 600.0
_Shape = tuple[int, int]
_Line = tuple[int, int, int]
"""GPUs, thousandths of each, and the group of the order."""


class _Turn(msgspec.Struct):
    gpus: tuple[int, ...]
    victims: set[int]


class InTurns(Scheduler):
    def __init__(self, jobs: tuple[Job, ...], gpus: int, order: Order, costs: Costs) -> None:
        self._jobs, self._order, self._costs = jobs, order, costs
        self._free = [WHOLE_GPU_MILLI] * gpus
        """What is neither used nor reserved; below 0 while the victims of a turn are being copied."""
        self._lines: dict[_Line, list[tuple[float, int]]] = {}
        self._had: dict[int, Had] = {}
        self._on: dict[int, tuple[int, ...]] = {}
        """GPUs of the jobs that run or are being copied."""
        self._copies: set[int] = set()
        self._host: dict[int, int] = {}
        self._turns: dict[int, _Turn] = {}
        """By beneficiary."""
        self._refuses: dict[int, float] = {}
        self._outcomes: list[Copied] = []
        self._moves: list[Move] = []

    def copied(self, copied: list[Copied]) -> None:
        self._outcomes += copied

    def step(self, now_s: float, ended: list[int], arrived: list[int]) -> list[Move]:
        self._moves = []
        for job in ended:
            self._release(job)
            self._had.pop(job)
            self._refuses.pop(job, None)
        for outcome in self._outcomes:
            self._after_copy(outcome, now_s)
        self._outcomes.clear()
        for job in arrived:
            self._had[job] = Had(f"{job:07d}", self._jobs[job].created_s)
            self._wait(job)
        self._serve(now_s)
        return self._moves

    def wakes_s(self, now_s: float) -> float:
        heads = [line[0][1] for line in self._lines.values() if line]
        if not heads:
            return float("inf")
        times = [self._order.changes_s(self._jobs[job], self._had[job], now_s, runs=False) for job in heads]
        times += [self._refuses.get(job, 0.0) for job in self._on]
        times += [
            self._order.changes_s(self._jobs[job], self._had[job], now_s, runs=True)
            for job in self._on
            if job not in self._copies
        ]
        return min((max(at, now_s + 1.0) for at in times if at > now_s), default=float("inf"))

    # --- what has happened ------------------------------------------------------------------------------------

    def _after_copy(self, outcome: Copied, now: float) -> None:
        job = outcome.job
        self._copies.discard(job)
        if outcome.outcome != "parked":
            del self._host[job]
        else:
            had = self._had[job]
            had.ran_s, had.since_s = had.ran_s + now - had.since_s, now
            self._release(job)
            self._wait(job)
        for beneficiary, turn in list(self._turns.items()):
            if job not in turn.victims:
                continue
            turn.victims.discard(job)
            if outcome.outcome == "failed":
                self._refuses[job] = now + ASKED_AGAIN_S
                del self._turns[beneficiary]
                self._book(beneficiary, turn.gpus, +1)
                self._wait(beneficiary)
            elif not turn.victims:
                del self._turns[beneficiary]
                self._book(beneficiary, turn.gpus, +1)
                self._run(beneficiary, turn.gpus, now)

    def _wait(self, job: int) -> None:
        of, had = self._jobs[job], self._had[job]
        line = self._lines.setdefault((of.gpus, of.milli, self._order.group(of, had)), [])
        heappush(line, (self._order.within(of, had), job))

    def _release(self, job: int) -> None:
        self._book(job, self._on.pop(job), +1)

    def _book(self, job: int, gpus: tuple[int, ...], sign: int) -> None:
        for gpu in gpus:
            self._free[gpu] += sign * self._jobs[job].milli

    # --- what is done -----------------------------------------------------------------------------------------

    def _serve(self, now: float) -> None:
        heads = [self._entry(line, now) for line, waiting in self._lines.items() if waiting]
        heapify(heads)
        unfit: set[_Shape] = set()
        while heads:
            _, line = heappop(heads)
            job, shape = self._lines[line][0][1], line[:2]
            gpus = None if shape in unfit else self._place(job, self._free)
            if gpus is not None:
                heappop(self._lines[line])
                self._run(job, gpus, now)
            else:
                unfit.add(shape)
                if not self._take_turn(job, now):
                    if self._order.is_overdue(self._had[job], now) and self._could(job):
                        return
                    continue
                heappop(self._lines[line])
            if self._lines[line]:
                heappush(heads, self._entry(line, now))

    def _room(self) -> int:
        return self._costs.host_mib - sum(self._host.values())

    def _could(self, job: int) -> bool:
        """Whether it could take a turn if all running jobs had run for long enough."""
        able = [one for one in self._on if one not in self._copies]
        return bool(self._sets(job, able, self._room()))

    def _entry(self, line: _Line, now: float) -> tuple[Rank, _Line]:
        job = self._lines[line][0][1]
        return self._order.rank(self._jobs[job], self._had[job], now), line

    def _place(self, job: int, free: list[int]) -> tuple[int, ...] | None:
        """The fullest GPUs that have room."""
        of = self._jobs[job]
        fits = sorted((left, gpu) for gpu, left in enumerate(free) if left >= of.milli)
        return None if len(fits) < of.gpus else tuple(gpu for _, gpu in fits[: of.gpus])

    def _run(self, job: int, gpus: tuple[int, ...], now: float) -> None:
        of, had = self._jobs[job], self._had[job]
        shares = tuple(Share(gpu, of.milli, of.milli * GPU_MIB // WHOLE_GPU_MILLI) for gpu in gpus)
        if job in self._host:
            self._moves.append(Resume(job, shares))
            self._copies.add(job)
        else:
            self._moves.append(Start(job, shares))
        if self._order.lifts and self._order.is_overdue(had, now):
            had.lifted_s = had.ran_s
        had.since_s = now
        self._on[job] = gpus
        self._book(job, gpus, -1)

    def _take_turn(self, job: int, now: float) -> bool:
        if not self._order.preempts:
            return False
        room = self._room()
        waiting = (self._jobs[job], self._had[job])
        able = [
            one
            for one in self._on
            if one not in self._copies
            and self._refuses.get(one, 0.0) <= now
            and self._costs.mib(self._jobs[one]) <= room
            and self._order.yields((self._jobs[one], self._had[one]), waiting, now)
        ]
        if not able:
            return False
        able.sort(key=lambda one: (*self._order.worst(self._jobs[one], self._had[one], now), one))
        found = [
            (sum(self._jobs[one].gpus * self._jobs[one].milli for one in victims), number, victims, gpus)
            for number, (victims, gpus) in enumerate(self._sets(job, able, room))
        ]
        if not found:
            return False
        _, _, victims, gpus = min(found)
        for one in victims:
            self._moves.append(Suspend(one, "host"))
            self._copies.add(one)
            self._host[one] = self._costs.mib(self._jobs[one])
        self._book(job, gpus, -1)
        self._turns[job] = _Turn(gpus, set(victims))
        return True

    def _sets(self, job: int, able: list[int], room: int) -> list[tuple[list[int], tuple[int, ...]]]:
        """Sets of victims that suffice, each minimal, with the GPUs that the job gets: for one GPU the best set of each
        GPU, for several GPUs the one that is found with the worst first."""
        if self._jobs[job].gpus > 1:
            tries = [able]
        else:
            tries = [[one for one in able if gpu in self._on[one]] for gpu in range(len(self._free))]
        found = []
        for candidates in tries:
            victims: list[int] = []
            left = room
            for one in candidates:
                if self._place(job, self._freed(victims)) is not None:
                    break
                if self._costs.mib(self._jobs[one]) <= left:
                    victims.append(one)
                    left -= self._costs.mib(self._jobs[one])
            if self._place(job, self._freed(victims)) is None:
                continue
            for one in list(reversed(victims)):
                fewer = [other for other in victims if other != one]
                if self._place(job, self._freed(fewer)) is not None:
                    victims = fewer
            gpus = self._place(job, self._freed(victims))
            if victims and gpus is not None:
                found.append((victims, gpus))
        return found

    def _freed(self, victims: list[int]) -> list[int]:
        free = list(self._free)
        for one in victims:
            for gpu in self._on[one]:
                free[gpu] += self._jobs[one].milli
        return free
