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


class Feed:
    """One task publishes, so that numbers go out in order whoever made them."""

    def __init__(self, bus: Bus, core: Core, log: Any) -> None:
        self._bus = bus
        self._core = core
        self._log = log
        self._subject = subjects.feed(core.epoch)
        self._outgoing: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self.lost = 0
        """Batches that could not be published. Their numbers are missing, so every reader takes a new snapshot."""

    def send(self, commands: list[Command]) -> list[FirstSight]:
        """Queues the batches among the commands; returns the rest."""
        rest: list[FirstSight] = []
        for command in commands:
            if isinstance(command, WireBatch):
                self._outgoing.append(encode(command))
            else:
                rest.append(command)
        if self._outgoing:
            self._wake.set()
        return rest

    def wake(self) -> None:
        """The core's due time may have moved."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            self.send(self._core.tick(time.monotonic()))
            while self._outgoing:
                await self._publish(self._outgoing.popleft())
            wait_s = self._core.due - time.monotonic()
            if wait_s <= 0 or self._outgoing:
                continue
            try:
                await asyncio.wait_for(self._wake.wait(), wait_s)
            except TimeoutError:
                continue  # a batch or a heartbeat is due

    async def _publish(self, payload: bytes) -> None:
        try:
            await self._bus.publish(self._subject, payload)
        except BusError as error:
            self.lost += 1
            self._log.warning("feed_batch_lost", error=str(error), lost=self.lost)
