"""Follows KERF_EVENTS from a remembered position: at least once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from shared.bus.consumer import EphemeralConsumer, Lost
from shared.bus.jetstream import JetStream
from shared.bus.port import BusError, LogEntry
from shared.bus.tasks import end

RETRY_S = 0.5

log = structlog.get_logger("bus")


class Follower:
    """Feeds a handler from a stream, one entry at a time; replaces its consumer when that is lost.

    A handler that raises stops nothing: the entry is counted, logged and skipped, so the next event is still handled. A
    stream that ends before the remembered position was recreated, and one that was created at another time: it is
    followed from its beginning. Entries that the stream dropped between that position and the next one it has are
    counted and logged.
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        handler: Callable[[LogEntry], Awaitable[None]],
        *,
        start: int = 1,
        created: str = "",
    ) -> None:
        """`created`: when the stream was of which `start` is a place; empty: unknown."""
        self._js = js
        self._stream = stream
        self._handler = handler
        self._created = created
        self.next_sequence = max(start, 1)
        self._consumer: EphemeralConsumer | None = None
        self.on_stop: Callable[[], None] = lambda: None
        self._task = asyncio.create_task(self._run(), name=f"follow {stream}")

    async def stop(self) -> None:
        self.on_stop()
        if not await end(self._task):
            log.error("bus_follower_hangs", stream=self._stream)

    def wake(self) -> None:
        """Checks at once (the connection is new)."""
        if self._consumer is not None:
            self._consumer.wake()

    async def _run(self) -> None:
        failing = False
        while True:
            try:
                await self._round()
            except Lost as lost:
                failing = False
                self._js.connection.stats.watch_restarts += 1
                log.info("bus_follower_restarted", stream=self._stream, next=self.next_sequence, why=str(lost))
            except BusError as error:
                if not failing:  # once an outage
                    log.warning("bus_follower_failed", stream=self._stream, error=str(error))
                failing = True
                await self._js.connection.wait_connected(10.0)
                await asyncio.sleep(RETRY_S)

    async def _round(self) -> None:
        """Ends by raising."""
        info = await self._js.stream_info(self._stream)
        last = info.state.last_seq
        if last + 1 < self.next_sequence or self._created not in ("", info.created):
            log.warning("bus_stream_began_again", stream=self._stream, expected=self.next_sequence, last=last)
            self.next_sequence = 1
        self._created = info.created
        consumer = self._consumer = EphemeralConsumer(self._js, self._stream, start=self.next_sequence)
        try:
            await consumer.open()
            while (delivered := await consumer.next(until=float("inf"))) is not None:
                entry = LogEntry(
                    sequence=delivered.sequence,
                    subject=delivered.subject,
                    payload=delivered.data,
                    stream=self._created,
                )
                if 1 < self.next_sequence < entry.sequence:
                    missed = entry.sequence - self.next_sequence
                    self._js.connection.stats.events_missed += missed
                    log.warning("bus_events_missed", stream=self._stream, expected=self.next_sequence, missed=missed)
                try:
                    await self._handler(entry)
                except Exception as error:
                    self._js.connection.stats.handler_failures += 1
                    log.error(
                        "bus_handler_failed",
                        subject=entry.subject,
                        sequence=entry.sequence,
                        error=repr(error),
                        exc_info=error,
                    )
                self.next_sequence = entry.sequence + 1
        finally:
            self._consumer = None
            await asyncio.shield(consumer.close())
