"""The feed's shell: batches onto the bus in their order, and the core's clock."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

from services.watcher.core import Command, Core, FirstSight, WireBatch
from shared.bus.port import Bus, BusError
from shared.contracts import subjects
from shared.contracts.base import encode

_SLACK_S = 0.0005


class Feed:
    """A single task publishes, so that batches go out in the order of their numbers."""

    def __init__(self, bus: Bus, core: Core, log: Any) -> None:
        self._bus = bus
        self._core = core
        self._log = log
        self._subject = subjects.feed(core.epoch)
        self._outgoing: deque[bytes] = deque()
        self._waiting = asyncio.Event()
        self._timer: asyncio.Handle | None = None
        self._rings_at = float("inf")
        self.mute = False
        """Publishes nothing, heartbeats included: its readers turn to another watcher."""
        self.lost = 0
        """Batches that could not be published. Their numbers are missing, so every reader takes a new snapshot."""

    def send(self, commands: list[Command]) -> list[FirstSight]:
        """Queues the batches among the commands; returns the rest. Call it after every input of the core."""
        rest: list[FirstSight] = []
        for command in commands:
            if not isinstance(command, WireBatch):
                rest.append(command)
            elif not self.mute:
                self._outgoing.append(encode(command))
        if self._outgoing:
            self._waiting.set()
        # The due time only ever comes nearer by a batch that begins to gather; a timer that rings early rings again.
        if self._rings_at > self._core.due + _SLACK_S:
            self._ring()
        return rest

    async def run(self) -> None:
        """Publishes what is queued, until cancelled."""
        self._tick()
        try:
            while True:
                await self._waiting.wait()
                self._waiting.clear()
                while self._outgoing:
                    await self._publish(self._outgoing.popleft())
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _ring(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = self._core.due
        self._timer = asyncio.get_running_loop().call_later(max(0.0, self._rings_at - time.monotonic()), self._tick)

    def _tick(self) -> None:
        self._timer, self._rings_at = None, float("inf")
        self.send(self._core.tick(time.monotonic()))

    async def _publish(self, payload: bytes) -> None:
        try:
            await self._bus.publish_in_parts(self._subject, payload)
        except BusError as error:
            self.lost += 1
            self._log.warning("feed_batch_lost", error=str(error), lost=self.lost)
