"""Evicts pods through policy/v1, and reports each eviction as an Event."""

from __future__ import annotations

from services.watcher.announcer import Announcer
from services.watcher.executors.batches import Batches
from shared.contracts import commands as c
from shared.kube.outcomes import Result
from shared.kube.writes import Writes


class Evictions:
    def __init__(self, writes: Writes, announcer: Announcer, batches: Batches) -> None:
        self._writes = writes
        self._announcer = announcer
        self._batches = batches

    async def evict(self, batch: c.EvictBatch) -> c.Answers:
        results = await self._batches.each(batch.evictions, self._evict, kind=lambda _: "evict")
        return self._batches.answers(batch.evictions, results)

    async def _evict(self, order: c.Evict) -> Result:
        result = await self._writes.pods.evict(order)
        if result.outcome == "done":
            self._announcer.tell(order, "Evicted", "Evicting", order.reason, warns=True)
        return result
