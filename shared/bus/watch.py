"""A watch over a KV bucket that survives restarts, wipes and silent deaths of its consumer (fault 1).

Each round lists every present key anew and then follows changes. A round ends by silence, reconnection, or after
`resync_s`; between rounds `_seen` remembers what the handler was told, so it hears of differences only, deletions
included: a key that a later listing lacks is told as absent with revision 0.

A consumer may be on a replica that is only catching up. So a listing of a whole bucket counts only if it has what the
bucket's leader had before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from shared.bus.consumer import Delivered, EphemeralConsumer, Lost
from shared.bus.jetstream import JetStream, StreamState
from shared.bus.port import BusError, KvEntry
from shared.bus.tasks import end

FIRST_ROUND_S = 10.0
RETRY_S = 0.5
LACKING_MOST, OLDER_MOST = 12, 4
"""How many listings in a row are not believed that lack keys, and that only do not reach to the leader's newest
message: it may have been taken out."""

log = structlog.get_logger("bus")


def absent(data: bytes, headers: Mapping[str, str]) -> bool:
    """Deleted, purged, expired or empty: all the same to Kerf."""
    return not data or "KV-Operation" in headers or "Nats-Marker-Reason" in headers


class KvWatch:
    def __init__(
        self,
        js: JetStream,
        stream: str,
        prefix: str,
        key: str,
        handler: Callable[[KvEntry], Awaitable[None]],
        *,
        resync_s: float,
    ) -> None:
        self._js = js
        self._stream = stream
        self._prefix = prefix
        self._filter = prefix + key
        self._handler = handler
        self._resync_s = resync_s
        self._seen: dict[str, tuple[int, int]] = {}
        """Key to (revision, time): after a wipe revisions begin again, so the number alone would not tell."""
        self._lagging = 0
        """How many listings in a row fell short."""
        self._synced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._consumer: EphemeralConsumer | None = None
        self.on_stop: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Returns when the handler has had every present key. Raises BusError when there is no such bucket or no
        server."""
        first: asyncio.Future[BusError] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(first), name=f"watch {self._filter}")
        synced = asyncio.create_task(self._synced.wait())
        either: set[asyncio.Future[Any]] = {synced, first}
        try:
            await asyncio.wait(either, timeout=FIRST_ROUND_S, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        finally:
            synced.cancel()
        if self._synced.is_set():
            return
        await self.stop()
        raise (
            first.result()
            if first.done()
            else BusError(f"watch on {self._filter}: no complete listing within {FIRST_ROUND_S:.0f} s")
        )

    async def stop(self) -> None:
        """Stops telling, and takes the consumer off the server."""
        self.on_stop()
        task, self._task = self._task, None
        if task is not None and not await end(task):
            log.error("bus_watch_hangs", watch=self._filter)

    def wake(self) -> None:
        """Begin a new round now (the connection is new)."""
        if self._consumer is not None:
            self._consumer.wake()

    async def _run(self, first: asyncio.Future[BusError]) -> None:
        failing = False
        while True:
            try:
                await self._round()
                failing = False
            except Lost as lost:
                self._js.connection.stats.watch_restarts += 1
                log.info("bus_watch_restarted", watch=self._filter, why=str(lost))
            except BusError as error:
                if not self._synced.is_set() and not first.done():
                    first.set_result(error)
                if not failing:  # once an outage, not twice a second
                    log.warning("bus_watch_failed", watch=self._filter, error=str(error))
                failing = True
                await self._js.connection.wait_connected(self._resync_s)
                await asyncio.sleep(RETRY_S)

    async def _round(self) -> None:
        loop = asyncio.get_running_loop()
        has = await self._leaders_state()
        consumer = self._consumer = EphemeralConsumer(
            self._js, self._stream, filter_subject=self._filter, last_per_subject=True
        )
        try:
            await consumer.open()
            until = loop.time() + self._resync_s
            present: dict[str, int] = {}
            listing = consumer.pending_at_start > 0
            if not listing:
                await self._listed(present, has)
            while (delivered := await consumer.next(until=float("inf") if listing else until)) is not None:
                await self._tell(delivered)
                if listing:
                    present[delivered.subject] = delivered.sequence
                    if delivered.pending == 0:
                        listing = False
                        await self._listed(present, has)
        finally:
            self._consumer = None
            await asyncio.shield(consumer.close())

    async def _leaders_state(self) -> StreamState:
        """What the leader has of the bucket; nothing for a watch on one key."""
        if not self._filter.endswith(">"):
            return StreamState()
        return (await self._js.stream_info(self._stream)).state

    async def _listed(self, present: Mapping[str, int], has: StreamState) -> None:
        """`present`: the newest sequence of each key. `has`: what the leader had before they were listed."""
        is_behind = max(present.values(), default=0) < has.last_seq
        self._lagging = self._lagging + 1 if is_behind else 0
        if is_behind and self._lagging <= (LACKING_MOST if len(present) < has.messages else OLDER_MOST):
            await asyncio.sleep(RETRY_S)
            raise Lost(f"a replica of {self._stream} has {len(present)} of {has.messages} keys, and is catching up")
        for subject in [s for s in self._seen if s not in present]:
            del self._seen[subject]
            await self._call(KvEntry(key=subject[len(self._prefix) :], value=None, revision=0))
        self._synced.set()

    async def _tell(self, delivered: Delivered) -> None:
        version = (delivered.sequence, delivered.time_ns)
        seen = self._seen.get(delivered.subject)
        if seen == version or (seen is not None and version[0] < seen[0] and version[1] < seen[1]):
            return  # told already, or by a replica that lags; a bucket that was made anew has later times
        self._seen[delivered.subject] = version
        value = None if absent(delivered.data, delivered.headers) else delivered.data
        await self._call(KvEntry(key=delivered.subject[len(self._prefix) :], value=value, revision=delivered.sequence))

    async def _call(self, entry: KvEntry) -> None:
        try:
            await self._handler(entry)
        except Exception as error:
            self._js.connection.stats.handler_failures += 1
            log.error("bus_watch_handler_failed", key=entry.key, error=repr(error), exc_info=error)
