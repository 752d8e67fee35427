"""Metrics as a service: follows the events, asks placement how it is, answers what was used and what was traced."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from typing import ClassVar, Literal, TypeVar

import msgspec

from services.metrics import cost
from services.metrics.core import Core, seconds_of
from services.metrics.missed_ends import MissedEnds, parts
from services.metrics.page.answers import PageAnswers
from services.metrics.page.fleet import Fleet
from services.metrics.page.server import Page
from services.metrics.page.sign_in import SignIn
from services.metrics.page.sign_in.none import NoSignIn
from services.metrics.page.sign_in.proxy import ProxySignIn
from services.metrics.page.sign_in.token_review import TokenReviewSignIn, reviewer
from services.metrics.pricing import read_prices
from services.metrics.traces import TraceStore
from services.metrics.usage import Record, Stranded, UsageBook
from shared.bus.port import BusError, Incoming, KvEntry, LogEntry
from shared.contracts import metrics_queries, queries, subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.envelope import check_subject, unwrap
from shared.contracts.metrics_queries import (
    CostAnswer,
    CostQuery,
    SpanBatch,
    TraceAnswer,
    TraceQuery,
    UsageAnswer,
    UsageQuery,
)
from shared.contracts.queries import (
    EndedGrantsAnswer,
    EndedGrantsQuery,
    QueuesAnswer,
    QueuesQuery,
    StatusAnswer,
    StatusQuery,
)
from shared.contracts.samples import UsageSample
from shared.kube.client import connect
from shared.model.gpu import Inventory
from shared.model.timestamps import seconds_text
from shared.service import Context, Service
from shared.service.settings import Count, PortOrNone, Seconds
from shared.telemetry.trace_ids import trace_id_for

NAMED_PENDING = 5_000
LONGEST_SAMPLE = 3
"""A status counts until the next one, unless that is later than so many intervals."""
FULL = 5_000
"""Records that wait for the disk before the event stream has to wait too."""
DAY_S = 86_400
GRANTS_ASKED_ABOUT = 5_000
"""In one message."""

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
    missed_ends_every_s: Seconds = 300.0
    """How often placement is asked which of the slices that are counted have ended without an event, and it is looked
    for nodes that have gone without one."""
    prices: str = ""
    """Path of the price file; empty: nothing is priced."""
    page_host: str = "127.0.0.1"
    page_port: PortOrNone = -1
    """The live page: a port, 0 for a free one, -1 for none."""
    page_sign_in: Literal["none", "proxy", "token_review"] = "none"
    """none: on loopback only. proxy: a header from listed addresses names the user. token_review: a Kubernetes token.
    """
    page_proxy_header: str = "X-Forwarded-User"
    page_proxy_addresses: tuple[str, ...] = ()
    """Addresses or networks of the proxy."""
    page_session_s: Seconds = 3600.0
    """How long a sign-in by token lasts."""
    page_kubeconfig: str = ""
    """For token_review outside a pod; empty: the pod's account."""

    def __post_init__(self) -> None:
        """Settings with which the page could not be served safely are refused before anything starts."""
        if self.page_port < 0:
            return
        if self.page_sign_in == "none":
            NoSignIn(self.page_host)
        if self.page_sign_in == "proxy":
            ProxySignIn(self.page_proxy_header, self.page_proxy_addresses)


class MetricsService(Service):
    """What happened: Prometheus, usage, traces."""

    name: ClassVar[str] = "metrics"
    config_type: ClassVar[type] = Config

    async def start(self, ctx: Context) -> None:
        """Raises UsageError where the usage book cannot be opened, PriceError for a price file that cannot be used."""
        config: Config = ctx.config
        self._ctx, self._config = ctx, config
        self._records: list[Record] = []
        self._room, self._wake, self._disk = asyncio.Event(), asyncio.Event(), asyncio.Lock()
        self._room.set()
        self._book = await asyncio.to_thread(UsageBook, config.database)
        self._sequence = await asyncio.to_thread(self._book.sequence)
        self._stream = await asyncio.to_thread(self._book.stream)
        self.core, self._traces = Core(ctx.metrics), TraceStore(config.traces)
        self._prices = await asyncio.to_thread(read_prices, config.prices)
        self.fleet = Fleet(round(ctx.now() * 1000))
        live = await asyncio.to_thread(self._book.live)
        self.core.restore(live)
        self.fleet.restore(live)
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
        self._left_out = ctx.metrics.counter(
            "kerf_usage_records_left_out_total", "Usage records that the usage book could not take."
        )
        self._missed = ctx.metrics.counter(
            "kerf_usage_ends_missed_total", "Grants that had ended by placement's book, and of which no event told it."
        )
        ctx.metrics.observe_by("kerf_traces_kept", "Traces that can be asked for.", lambda: float(len(self._traces)))
        self._lag_s, self._are_nodes_listed = 0.0, False
        await ctx.bus.subscribe(metrics_queries.USAGE.subject, self._usage)
        await ctx.bus.subscribe(metrics_queries.COST.subject, self._cost)
        await ctx.bus.subscribe(metrics_queries.TRACE.subject, self._trace)
        await ctx.bus.subscribe(subjects.SPANS_ALL, self._spans)
        ctx.spawn(self._follow(), name="follow")
        ctx.spawn(self._writes(), name="usage")
        ctx.spawn(self._statuses(), name="status")
        ctx.spawn(self._looks_for_missed_ends(), name="missed ends")
        ctx.spawn(self._forgets(), name="forget")
        if config.page_port >= 0:
            await self._serve_page(config)

    async def _serve_page(self, config: Config) -> None:
        """Raises ValueError or AccessError where the sign-in cannot work, OSError where the port is taken."""
        answers = PageAnswers(
            self._ctx.bus,
            self.fleet,
            status=lambda: self.core.status,
            trace=lambda namespace, name: self._trace_of(TraceQuery(namespace=namespace, name=name)),
            cost=lambda: self._cost_of(CostQuery(most=200)),
            now=self._ctx.now,
        )
        page = Page(self.fleet, answers, await self._sign_in(config), session_s=config.page_session_s)
        port = await page.start(config.page_host, config.page_port)
        self._ctx.on_drain(page.stop)
        await self._ctx.bus.subscribe(subjects.USAGE_ALL, self._sample)
        self._ctx.health.set("page", ok=True, detail=f"http://{config.page_host}:{port}/")
        self._ctx.log.info("page_listening", host=config.page_host, port=port, sign_in=config.page_sign_in)

    async def _sign_in(self, config: Config) -> SignIn:
        if config.page_sign_in == "proxy":
            return ProxySignIn(config.page_proxy_header, config.page_proxy_addresses)
        if config.page_sign_in == "token_review":
            transport = await connect(config.page_kubeconfig, max_connections=4, user_agent="kerf-metrics")
            self._ctx.on_drain(transport.close)
            return TokenReviewSignIn(reviewer(transport))
        return NoSignIn(config.page_host)

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
            self._nodes_listed,
            lambda: self._ctx.bus.follow_events(self._event, start=self._sequence + 1, stream=self._stream),
        ]
        while begin:
            try:
                await begin[0]()
                begin.pop(0)
            except BusError as error:
                self._ctx.health.set("events", ok=False, detail=str(error))
                await asyncio.sleep(self._config.status_every_s)
        self._ctx.health.set("events", ok=True)

    async def _nodes_listed(self) -> None:
        self._are_nodes_listed = True
        try:
            counted = await self._blocking(self._book.nodes)
        except sqlite3.Error as error:
            self._ctx.log.error("nodes_not_looked_for", error=str(error))  # the next look comes in some minutes
            return
        self._note(self.core.all_listed(counted, self._ctx.now()))

    # --- in ---------------------------------------------------------------------------------------------------

    async def _event(self, entry: LogEntry) -> None:
        await self._room.wait()
        try:
            envelope, event = unwrap(entry.payload)
            if event is not None:
                check_subject(entry.subject, event)
        except ContractError as error:
            self._unreadable.add()
            self._ctx.log.warning("event_unreadable", subject=entry.subject, sequence=entry.sequence, error=str(error))
        else:
            self._note(self.core.event(envelope, event))
            at_s = seconds_of(envelope.time)
            if self._config.page_port >= 0:
                self.fleet.event(event, at_s)
            # Of this event: one of a machine with its clock ahead would hide all that come late after it.
            self._lag_s = max(0.0, self._ctx.now() - at_s)
        self._sequence, self._stream = entry.sequence, entry.stream

    async def _inventory(self, entry: KvEntry) -> None:
        node = subjects.untoken(entry.key)
        inventory = None if entry.value is None else decode(entry.value, Inventory)
        self._note(self.core.inventory(node, inventory, self._ctx.now()))
        if self._config.page_port >= 0:
            self.fleet.inventory(node, inventory)

    async def _sample(self, incoming: Incoming) -> None:
        sample = decode(incoming.payload, UsageSample)
        subjects.check_sender(incoming.subject, sample.node)
        self.fleet.sample(sample)

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
            now_ms = round(self._ctx.now() * 1000)
            first_ms = await self._blocking(self._book.since_ms)
            answer = UsageAnswer(
                rows=await self._blocking(lambda: self._book.usage(query.by, now_ms)),
                # A node's clock may be anywhere.
                since="" if first_ms is None else seconds_text(max(0, min(first_ms, now_ms)) / 1000),
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
        await self._ctx.bus.respond(incoming, encode(self._trace_of(query)))

    def _trace_of(self, query: TraceQuery) -> TraceAnswer:
        uid = query.uid or self.core.uid_of(query.namespace, query.name)
        if not uid:
            return TraceAnswer(error=f"no event has spoken of pod {query.namespace}/{query.name}")
        trace_id = f"{trace_id_for(uid):032x}"
        spans = self._traces.get(trace_id)
        return TraceAnswer(
            trace_id=trace_id,
            spans=spans,
            error="" if spans else f"no spans of pod {uid} are kept: it was not sampled, or it is too old",
        )

    async def _cost(self, incoming: Incoming) -> None:
        try:
            answer = await self._cost_of(decode(incoming.payload, CostQuery))
        except ContractError as error:
            answer = CostAnswer(error=str(error))
        await self._ctx.bus.respond(incoming, encode(answer))

    async def _cost_of(self, query: CostQuery) -> CostAnswer:
        try:
            of = cost.period(query.since, query.until, round(self._ctx.now() * 1000))
            await self._flush()
            spent = await self._blocking(lambda: self._book.spent(query.by, of.since_ms, of.until_ms))
            there = await self._blocking(lambda: self._book.capacity_ms(of.since_ms, of.until_ms))
            stranded = await self._blocking(lambda: self._book.stranded_ms(of.since_ms, of.until_ms))
        except (ValueError, sqlite3.Error) as error:
            return CostAnswer(error=str(error))
        rows, (since, until) = cost.rows(spent, self._prices), of.texts()
        return CostAnswer(
            rows=tuple(rows[: query.most]),
            more=max(0, len(rows) - query.most),
            currency=self._prices.currency,
            since=since,
            until=until,
            capacity=cost.capacity(there, spent, stranded, self._prices),
        )

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
            records, sequence, stream = self._records, self._sequence, self._stream
            if records:
                self._records = []
                try:
                    left_out = await asyncio.to_thread(self._book.write, records, sequence, stream)
                except BaseException:
                    self._records = records + self._records
                    raise
                for why in left_out:
                    self._left_out.add()
                    self._ctx.log.error("usage_record_left_out", why=why)
            self._room.set()

    async def _blocking(self, ask: Callable[[], T]) -> T:
        async with self._disk:
            return await asyncio.to_thread(ask)

    async def _statuses(self) -> None:
        query = encode(StatusQuery(uids=NAMED_PENDING if self._config.page_port >= 0 else 0))
        sampled_ms = 0
        while True:
            await asyncio.sleep(self._config.status_every_s)
            try:
                self.core.answered(decode(await self._ctx.bus.request(queries.STATUS.subject, query), StatusAnswer))
                self.fleet.reconcile(self.core.status.waiting_uids, self.core.status.pods_waiting)
                now_ms = round(self._ctx.now() * 1000)
                if 0 < now_ms - sampled_ms < LONGEST_SAMPLE * self._config.status_every_s * 1000:
                    self._note([Stranded(now_ms, self.core.status.fragmentation_milli, now_ms - sampled_ms)])
                sampled_ms = now_ms
                queues = await self._ctx.bus.request(queries.QUEUES.subject, encode(QueuesQuery()))
                self.core.queues_answered(decode(queues, QueuesAnswer).queues)
                self._ctx.health.set("placement", ok=True)
            except (BusError, ContractError) as error:
                # The earlier figures stay for a minute; kerf_status_age_seconds is how old they are.
                self._ctx.health.set("placement", ok=True, detail=f"placement does not answer: {error}")

    async def _looks_for_missed_ends(self) -> None:
        missed = MissedEnds()
        while True:
            await asyncio.sleep(self._config.missed_ends_every_s)
            over: list[str] = []
            if self._are_nodes_listed:
                await self._nodes_listed()  # events of nodes that are gone may have been read since
            held = self.core.held()
            starting = self.fleet.starting().difference(held)
            try:
                for asked in parts([*held, *starting], GRANTS_ASKED_ABOUT):
                    query = encode(EndedGrantsQuery(grant_ids=asked))
                    reply = await self._ctx.bus.request(queries.ENDED_GRANTS.subject, query)
                    answer = decode(reply, EndedGrantsAnswer)
                    if answer.error:
                        raise ContractError(answer.error)
                    over += answer.grant_ids
            except (BusError, ContractError) as error:
                # One look less: nothing is taken for ended, and nothing that was looked at before is forgotten.
                self._ctx.log.info("missed_ends_not_looked_for", error=str(error))
                continue
            for grant_id, ended_s in missed.look(over, self._ctx.now()).items():
                self.fleet.end(grant_id)
                if grant_id in starting:
                    continue  # it had nothing, and no event was to tell its end
                self._missed.add()
                self._ctx.log.warning("grant_ended_unheard", grant=grant_id)
                self._note(self.core.end(grant_id, ended_s))

    async def _forgets(self) -> None:
        while True:
            await self._forget(round((self._ctx.now() - self._config.keep_days * DAY_S) * 1000))
            await asyncio.sleep(DAY_S)

    async def _forget(self, before_ms: int) -> None:
        try:
            # The nodes of when it is done: sizes that were written meanwhile are to stay.
            gone = await self._blocking(lambda: self._book.forget(before_ms, self.core.nodes()))
            self._ctx.log.info("usage_forgotten", grants=gone)
        except sqlite3.Error as error:
            self._ctx.log.error("usage_not_forgotten", error=str(error))


SERVICE = MetricsService
