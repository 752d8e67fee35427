"""Metrics as a service: follows the events, asks placement how it is, answers what was used and what was traced."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from typing import ClassVar, TypeVar

import msgspec

from services.metrics.core import Core
from services.metrics.traces import TraceStore
from services.metrics.usage import Record, UsageBook
from shared.bus.port import BusError, Incoming, KvEntry, LogEntry
from shared.contracts import queries, subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.envelope import unwrap
from shared.contracts.queries import (
    QueuesAnswer,
    QueuesQuery,
    SpanBatch,
    StatusAnswer,
    StatusQuery,
    TraceAnswer,
    TraceQuery,
    UsageAnswer,
    UsageQuery,
)
from shared.model.gpu import Inventory
from shared.service import Context, Service
from shared.service.settings import Count, Seconds
from shared.telemetry.trace_ids import trace_id_for

FULL = 5_000
"""Records that wait for the disk before the event stream has to wait too."""
DAY_S = 86_400

T = TypeVar("T")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The metrics service's settings."""

    database: str = ""
    """Path of the usage book; empty: in memory, for demos."""
    keep_days: Count = 90
    """How long a slice that has ended stays in the usage book."""
    traces: Count = 5_000
    """How many of the newest traces are kept, in memory."""
    status_every_s: Seconds = 2.0
    write_every_s: Seconds = 0.5


class MetricsService(Service):
    """What happened: Prometheus, usage, traces."""

    name: ClassVar[str] = "metrics"
    config_type: ClassVar[type] = Config

    async def start(self, ctx: Context) -> None:
        """Raises UsageError where the usage book cannot be opened."""
        config: Config = ctx.config
        self._ctx, self._config = ctx, config
        self._records: list[Record] = []
        self._room, self._wake, self._disk = asyncio.Event(), asyncio.Event(), asyncio.Lock()
        self._room.set()
        self._book = await asyncio.to_thread(UsageBook, config.database)
        self._sequence = await asyncio.to_thread(self._book.sequence)
        self.core, self._traces = Core(ctx.metrics), TraceStore(config.traces)
        self.core.restore(await asyncio.to_thread(self._book.live))
        self._unreadable = ctx.metrics.counter(
            "kerf_events_unreadable_total", "Events that keep no contract; passed over."
        )
        ctx.metrics.observe_by(
            "kerf_event_lag_seconds", "Age of the newest event when it was heard.", lambda: self._lag_s
        )
        ctx.metrics.observe_by(
            "kerf_usage_records_waiting",
            "Usage records that are not on disk yet.",
            lambda: float(len(self._records)),
        )
        self._write_failures = ctx.metrics.counter(
            "kerf_usage_write_failures_total", "Writes of the usage book that failed; they are repeated."
        )
        ctx.metrics.observe_by("kerf_traces_kept", "Traces that can be asked for.", lambda: float(len(self._traces)))
        self._lag_s = 0.0
        await ctx.bus.subscribe(queries.USAGE.subject, self._usage)
        await ctx.bus.subscribe(queries.TRACE.subject, self._trace)
        await ctx.bus.subscribe(subjects.SPANS_ALL, self._spans)
        ctx.spawn(self._follow(), name="follow")
        ctx.spawn(self._writes(), name="usage")
        ctx.spawn(self._statuses(), name="status")
        ctx.spawn(self._forgets(), name="forget")

    async def drain(self) -> None:
        """What was heard is written."""
        try:
            await self._flush()
        except sqlite3.Error as error:
            # Nothing is lost by it: the place in the stream was not written either.
            self._ctx.log.error("usage_not_written", error=str(error), records=len(self._records))
        await self._blocking(self._book.close)

    async def _follow(self) -> None:
        """Streams and buckets are made by placement, which may start later than this."""
        begin: list[Callable[[], Awaitable[object]]] = [
            lambda: self._ctx.bus.kv(subjects.KV_NODES).watch(self._inventory),
            lambda: self._ctx.bus.follow_events(self._event, start=self._sequence + 1),
        ]
        while begin:
            try:
                await begin[0]()
                begin.pop(0)
            except BusError as error:
                self._ctx.health.set("events", ok=False, detail=str(error))
                await asyncio.sleep(self._config.status_every_s)
        self._ctx.health.set("events", ok=True)

    # --- in ---------------------------------------------------------------------------------------------------

    async def _event(self, entry: LogEntry) -> None:
        await self._room.wait()
        try:
            envelope, event = unwrap(entry.payload)
        except ContractError as error:
            self._unreadable.add()
            self._ctx.log.warning("event_unreadable", subject=entry.subject, sequence=entry.sequence, error=str(error))
        else:
            self._note(self.core.event(envelope, event))
            self._lag_s = max(0.0, self._ctx.now() - self.core.last_event_s)
        self._sequence = entry.sequence

    async def _inventory(self, entry: KvEntry) -> None:
        node = subjects.untoken(entry.key)
        self._note(self.core.inventory(node, None if entry.value is None else decode(entry.value, Inventory)))

    async def _spans(self, incoming: Incoming) -> None:
        self._traces.add(decode(incoming.payload, SpanBatch).spans)

    def _note(self, records: list[Record]) -> None:
        self._records += records
        if len(self._records) >= FULL:
            self._room.clear()
            self._wake.set()

    # --- answers ----------------------------------------------------------------------------------------------

    async def _usage(self, incoming: Incoming) -> None:
        try:
            query = decode(incoming.payload, UsageQuery)
            await self._flush()
            answer = UsageAnswer(
                rows=await self._blocking(lambda: self._book.usage(query.by, round(self._ctx.now() * 1000)))
            )
        except (ValueError, sqlite3.Error) as error:
            answer = UsageAnswer(error=str(error))
        await self._ctx.bus.respond(incoming, encode(answer))

    async def _trace(self, incoming: Incoming) -> None:
        try:
            query = decode(incoming.payload, TraceQuery)
        except ContractError as error:
            await self._ctx.bus.respond(incoming, encode(TraceAnswer(error=str(error))))
            return
        uid = query.uid or self.core.uid_of(query.namespace, query.name)
        if not uid:
            answer = TraceAnswer(error=f"no event has spoken of pod {query.namespace}/{query.name}")
        else:
            trace_id = f"{trace_id_for(uid):032x}"
            spans = self._traces.get(trace_id)
            answer = TraceAnswer(
                trace_id=trace_id,
                spans=spans,
                error="" if spans else f"no spans of pod {uid} are kept: it was not sampled, or it is too old",
            )
        await self._ctx.bus.respond(incoming, encode(answer))

    # --- in the background ------------------------------------------------------------------------------------

    async def _writes(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._config.write_every_s):
                    await self._wake.wait()
            except TimeoutError:
                self._wake.clear()  # the usual rhythm
            self._wake.clear()
            try:
                await self._flush()
                self._ctx.health.set("usage", ok=True)
            except sqlite3.Error as error:
                self._write_failures.add()
                # Kept and tried again; when too many wait, the event stream waits with them and loses nothing.
                self._ctx.log.error("usage_not_written", error=str(error), records=len(self._records))
                self._ctx.health.set("usage", ok=False, detail=f"the usage book cannot be written: {error}")
                await asyncio.sleep(self._config.write_every_s)

    async def _flush(self) -> None:
        """Raises sqlite3.Error; the records are kept then."""
        async with self._disk:
            records, sequence = self._records, self._sequence
            if records:
                self._records = []
                try:
                    await asyncio.to_thread(self._book.write, records, sequence)
                except sqlite3.Error:
                    self._records = records + self._records
                    raise
            self._room.set()

    async def _blocking(self, ask: Callable[[], T]) -> T:
        async with self._disk:
            return await asyncio.to_thread(ask)

    async def _statuses(self) -> None:
        while True:
            await asyncio.sleep(self._config.status_every_s)
            try:
                self.core.status = decode(
                    await self._ctx.bus.request(queries.STATUS.subject, encode(StatusQuery())), StatusAnswer
                )
                self.core.queues = decode(
                    await self._ctx.bus.request(queries.QUEUES.subject, encode(QueuesQuery())), QueuesAnswer
                ).queues
                self._ctx.health.set("placement", ok=True)
            except (BusError, ContractError) as error:
                # The earlier figures stay, and health says how old they are about to be.
                self._ctx.health.set("placement", ok=True, detail=f"placement does not answer: {error}")

    async def _forgets(self) -> None:
        while True:
            before_ms = round((self._ctx.now() - self._config.keep_days * DAY_S) * 1000)
            try:
                gone = await self._blocking(lambda before=before_ms: self._book.forget(before))  # type: ignore[misc]
                self._ctx.log.info("usage_forgotten", grants=gone)
            except sqlite3.Error as error:
                self._ctx.log.error("usage_not_forgotten", error=str(error))
            await asyncio.sleep(DAY_S)


SERVICE = MetricsService
