"""Whole GPUs in order of arrival, as Kubernetes does it: a pod that requests a part gets a whole one.

kube-scheduler tries pods of equal priority in the order in which they came to its queue. One that does not fit goes
aside and does not delay those behind it; when a pod ends, those that it may help are tried again in order. Its
back-off of 1 to 10 s between two tries is left out, in its favour. With `strict` no pod passes an older one, as in
a plain queue.
"""

from __future__ import annotations

from collections import deque

from bench.jobs.replay import Evict, Scheduler, Share, Start
from bench.jobs.trace import Job
from bench.openb.trace import GPU_MIB
from shared.model.units import WHOLE_GPU_MILLI


class Native(Scheduler):
    def __init__(self, jobs: tuple[Job, ...], gpus: int, *, strict: bool = False) -> None:
        self._jobs, self._strict = jobs, strict
        self._free = list(range(gpus))
        self._has: dict[int, list[int]] = {}
        self._waiting: dict[int, deque[int]] = {}
        """By the number of GPUs, the oldest first: of pods of equal size none fits if the first does not."""

    def step(self, now_s: float, ended: list[int], arrived: list[int]) -> list[Start | Evict]:
        del now_s
        for gone in ended:
            self._free += self._has.pop(gone)
        self._free.sort()
        for came in arrived:
            self._waiting.setdefault(self._jobs[came].gpus, deque()).append(came)
        moves: list[Start | Evict] = []
        while (job := self._next()) is not None:
            size = self._jobs[job].gpus
            self._waiting[size].popleft()
            given, self._free = self._free[:size], self._free[size:]
            self._has[job] = given
            moves.append(Start(job, tuple(Share(gpu, WHOLE_GPU_MILLI, GPU_MIB) for gpu in given)))
        return moves

    def _next(self) -> int | None:
        heads = sorted(line[0] for line in self._waiting.values() if line)
        return next(
            (job for job in (heads[:1] if self._strict else heads) if self._jobs[job].gpus <= len(self._free)), None
        )
