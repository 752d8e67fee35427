"""Gangs that are held before they are suspended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Any

from services.node_agent.strategies.alone import Alone
from services.node_agent.strategies.holds import Holds
from services.node_agent.strategies.stopping import NotQuiet


class Pod:
    """One pod, alone with which its suspender and the hold change what it does, as the real ones are."""

    def __init__(self) -> None:
        self.does, self.stopping, self.fails = "runs", asyncio.Event(), asyncio.Event()
        self._alone = Alone()
        self.checkpointer: Any = self
        self.before = ""

    def gate_of(self, uid: str) -> Any:
        assert uid == "u"
        self.before = self.does
        return self

    def hold(self) -> None:
        self.does = "held"

    def as_before(self) -> None:
        self.does = self.before

    @contextlib.asynccontextmanager
    async def alone_with(self, uids: Collection[str]) -> AsyncIterator[None]:
        async with self._alone.on(set(uids)):
            yield

    async def stop(self, uids: Collection[str], gate: Any, attempts: Any) -> None:
        assert (uids, bool(attempts)) == (("u",), True)
        gate.hold()
        self.stopping.set()
        await self.fails.wait()
        raise NotQuiet("a kernel runs")

    async def suspend(self) -> None:
        async with self.alone_with(("u",)):
            self.does = "paused"


async def test_a_hold_that_fails_undoes_no_suspension_that_waited_for_it() -> None:
    """The plan was given up, and the next one suspends the pod at once: its order waits until the hold is over, and is
    then carried out and confirmed."""
    pod = Pod()
    holds = Holds(pod)  # type: ignore[arg-type]
    hold = asyncio.create_task(holds.hold(("u",), 60.0))
    await pod.stopping.wait()
    suspension = asyncio.create_task(pod.suspend())
    await asyncio.sleep(0)
    pod.fails.set()
    assert await hold == "a kernel runs"
    await suspension
    assert pod.does == "paused"
