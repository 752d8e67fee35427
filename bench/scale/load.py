"""The pods of a run: how many are created at once, when each was created, and when it was seen bound."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bench.scale.measured import longest_gap_s
from shared.contracts.facts import Fact, Put
from shared.model import names
from shared.model.grant import decode_grant
from shared.model.objects import Pod

NAMESPACE = "bench"
MEMORY_MIB = 81_920
BACKLOG = 512
"""So many pods wait at most: more would measure the queue's length and not placement."""
WORKERS = 64
MIX: tuple[tuple[int, int, dict[str, str]], ...] = (
    (1, 1000, {"kerf.dev/gpu": "1"}),
    (3, 500, {"kerf.dev/gpu-memory": "40Gi", "kerf.dev/gpu-compute": "50"}),
    (8, 333, {"kerf.dev/gpu-memory": "26Gi", "kerf.dev/gpu-compute": "33"}),
    (8, 250, {"kerf.dev/gpu-memory": "20Gi", "kerf.dev/gpu-compute": "25"}),
)
"""Of 20 pods so many, what each takes of a GPU per mille, and its limits."""
_CYCLE = [limits for count, _, limits in MIX for _ in range(count)]
random.Random(1).shuffle(_CYCLE)
MILLI_A_POD = sum(count * milli for count, milli, _ in MIX) / len(_CYCLE)
FILL = 0.92
"""The part of all GPUs that pods may take: above it, what does not fit is a matter of fragments."""


def max_pods(gpus: int) -> int:
    return int(gpus * 1000 * FILL / MILLI_A_POD)


def pod_object(number: int) -> dict[str, Any]:
    limits = _CYCLE[number % len(_CYCLE)]
    resources = {"limits": limits, "requests": {"cpu": "500m", "memory": "1Gi", **limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"scale-{number}", "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
    }


class Load:
    """Creates pods `scale-0` on, of which at most BACKLOG are not bound yet."""

    def __init__(self, create: Callable[[dict[str, Any]], Awaitable[None]], target: int) -> None:
        """`target`: how many pods there will be when the load has been created."""
        self._create = create
        self.target = target
        self._loop = asyncio.get_running_loop()
        self.created: dict[str, float] = {}
        """When its creation was answered, by the loop's clock."""
        self.bound: dict[str, float] = {}
        """When it was first seen bound."""
        self.times: list[float] = []
        """The same times, sorted."""
        self.terms: list[int] = []
        """Of each of them the term of the leader that decided it."""
        self._next = 0
        self._room = asyncio.Event()
        self._marks: list[tuple[int, asyncio.Future[None]]] = []

    def take(self, facts: Sequence[Fact]) -> None:
        """What a watch has seen."""
        now = self._loop.time()
        for fact in facts:
            if not isinstance(fact, Put) or not isinstance(fact.object, Pod):
                continue
            meta = fact.object.metadata
            if meta.namespace == NAMESPACE and fact.object.spec.node_name and meta.name not in self.bound:
                self.bound[meta.name] = now
                self.times.append(now)
                self.terms.append(decode_grant(meta.annotations[names.ANNOTATION_GRANT]).term)
        if self._next - len(self.bound) < BACKLOG:
            self._room.set()
        for mark in [mark for mark in self._marks if len(self.bound) >= mark[0]]:
            self._marks.remove(mark)
            if not mark[1].done():
                mark[1].set_result(None)

    async def reached(self, bound: int) -> None:
        """Returns when so many pods have been seen bound."""
        if len(self.bound) < bound:
            mark = self._loop.create_future()
            self._marks.append((bound, mark))
            await mark

    async def create_all(self) -> None:
        """As fast as they are bound, until `target` pods have been created."""

        async def worker() -> None:
            while self._next < self.target:
                if self._next - len(self.bound) >= BACKLOG:
                    self._room.clear()
                    await self._room.wait()
                    continue
                await self._one()

        async with asyncio.TaskGroup() as workers:
            for _ in range(WORKERS):
                workers.create_task(worker())

    async def create_at(self, rate: float, count: int) -> None:
        """`count` more at a steady rate; a slow creation delays no other."""
        began, first = self._loop.time(), self._next
        async with asyncio.TaskGroup() as creations:
            while self._next < first + count:
                await asyncio.sleep(max(0.0, began + (self._next - first) / rate - self._loop.time()))
                creations.create_task(self._one())
                await asyncio.sleep(0)  # it takes its number

    def latencies_ms(self, first: int) -> list[float]:
        """Created to seen bound, of the pods from number `first` on. A watch may be ahead of the creation's answer."""
        return [
            max(0.0, self.bound[name] - self.created[name]) * 1000
            for name in (f"scale-{number}" for number in range(first, self._next))
        ]

    def longest_gap_s(self, since: float) -> float:
        """The longest time since then in which pods waited and none was bound; 0 if all had been bound before."""
        done = len(self.bound) >= self.target
        until = self.times[-1] if done else self._loop.time()
        return round(longest_gap_s(self.times, since, until), 2) if until > since else 0.0

    async def _one(self) -> None:
        number, self._next = self._next, self._next + 1
        made = pod_object(number)
        await self._create(made)
        self.created[made["metadata"]["name"]] = self._loop.time()
