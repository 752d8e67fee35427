"""A ceiling: notebooks exchange GPUs at the end of each cell, in the order in which they want one, and without delay.

It knows at once what a node's agent sees a sample later, and it takes a GPU from whoever has run no cell for longest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.jobs.replay import Copied, Order, Resume, Share, Start, Suspend
from bench.openb.trace import GPU_MIB


class AtOnce:
    """Its day has to be run with `idle_after_s` 0."""

    def __init__(self, gpus: int) -> None:
        self._free = list(range(gpus))
        self._on: dict[int, int] = {}
        self._going: dict[int, int] = {}
        self._parked: set[int] = set()
        self._pending: list[int] = []

    def second(
        self,
        now_s: float,
        arrived: list[int],
        copied: list[Copied],
        idle: Mapping[int, float],
        woken: Mapping[int, float],
    ) -> Sequence[Order]:
        del now_s
        self._pending += arrived
        for one in copied:
            if one.outcome == "parked":
                self._free.append(self._going.pop(one.job))
                self._parked.add(one.job)
        orders: list[Order] = []
        waiting = sorted((job for job in woken if job in self._parked), key=lambda job: woken[job])
        for job in (*waiting, *self._pending):
            if not self._free:
                break
            gpu = self._on[job] = self._free.pop()
            share = (Share(gpu, 1000, GPU_MIB),)
            if job in self._parked:
                self._parked.discard(job)
                orders.append(Resume(job, share))
            else:
                self._pending.remove(job)
                orders.append(Start(job, share))
        served = {order.job for order in orders}
        short = sum(job not in served for job in (*waiting, *self._pending)) - len(self._going)
        for job in sorted((job for job in self._on if job in idle), key=lambda job: idle[job])[: max(0, short)]:
            self._going[job] = self._on.pop(job)
            orders.append(Suspend(job, "host"))
        return orders
