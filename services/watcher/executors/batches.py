"""Batches of orders: carried out within a limit, their outcomes counted, what did not end well answered.

Bindings have a limit of their own: an admission webhook that hangs on patches must not keep them waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import TypeVar

from services.watcher.config import WRITES_IN_FLIGHT
from shared.bus.tasks import end
from shared.contracts import commands as c
from shared.kube.outcomes import Result
from shared.telemetry import Metrics

MESSAGE_MOST = 300
"""Characters of the server's own sentence in an answer: all answers to a batch must fit into one message."""

T = TypeVar("T")


class Batches:
    def __init__(self, metrics: Metrics, *, binds_in_flight: int = WRITES_IN_FLIGHT) -> None:
        self._bind_slots = asyncio.Semaphore(binds_in_flight)
        self._slots = asyncio.Semaphore(WRITES_IN_FLIGHT)
        self._under_way: dict[c.Bind, asyncio.Task[Result]] = {}
        self._outcomes = metrics.counter(
            "kerf_watcher_writes_total", "Writes in the cluster, by kind and outcome.", ("kind", "outcome")
        )

    @property
    def binding(self) -> int:
        """Binds in flight or waiting for their turn."""
        return len(self._under_way)

    async def close(self) -> None:
        """Ends the Bindings that are still under way."""
        await end(*self._under_way.values())

    async def each(
        self, orders: Sequence[T], execute: Callable[[T], Awaitable[Result]], *, kind: Callable[[T], str]
    ) -> list[Result]:
        """All of them concurrently, within the limit of all but Bindings. Counts their outcomes by their `kind`."""
        if len(orders) == 1:
            return [await self._one(orders[0], execute, kind, self._slots)]
        return list(await asyncio.gather(*(self._one(order, execute, kind, self._slots) for order in orders)))

    async def each_once(self, binds: Sequence[c.Bind], execute: Callable[[c.Bind], Awaitable[Result]]) -> list[Result]:
        """As `each`, within the limit of Bindings. One that is repeated while it is under way has the outcome of the
        first: placement repeats Bindings that it does not see, and that must not add to the load of a slow API server.
        It is not cancelled together with one of the batches that it is in."""
        return list(await asyncio.gather(*(asyncio.shield(self._once(bind, execute)) for bind in binds)))

    def _once(self, bind: c.Bind, execute: Callable[[c.Bind], Awaitable[Result]]) -> asyncio.Task[Result]:
        task = self._under_way.get(bind)
        if task is None:
            one = self._one(bind, execute, lambda _: "bind", self._bind_slots)
            task = self._under_way[bind] = asyncio.create_task(one)
            task.add_done_callback(lambda _: self._under_way.pop(bind))
        return task

    async def _one(
        self, order: T, execute: Callable[[T], Awaitable[Result]], kind: Callable[[T], str], slots: asyncio.Semaphore
    ) -> Result:
        async with slots:
            result = await execute(order)
        self._outcomes.add(1, kind(order), result.outcome)
        return result

    @staticmethod
    def answers(
        orders: Sequence[T], results: Sequence[Result], *, subject: Callable[[T], str] = attrgetter("uid")
    ) -> c.Answers:
        """They name only what did not end well, by its `subject`, so `done` costs no bytes."""
        answers = []
        for order, result in zip(orders, results, strict=True):
            if result.outcome != "done":
                answers.append(
                    c.Answer(
                        uid=subject(order),
                        outcome=result.outcome,
                        resource_version=getattr(order, "resource_version", ""),
                        message=result.message[:MESSAGE_MOST],
                    )
                )
        return c.Answers(answers=tuple(answers))
