"""The watcher: Kubernetes' only door. Wiring of source, core and executors to the bus."""

from __future__ import annotations

import asyncio
import datetime
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, TypeVar

from services.watcher.announcer import Announcer
from services.watcher.config import Config
from services.watcher.core import Command, Core
from services.watcher.executors.batches import Batches
from services.watcher.executors.bindings import Bindings
from services.watcher.executors.evictions import Evictions
from services.watcher.executors.patches import Patches
from services.watcher.feed import Feed
from services.watcher.metrics import export
from services.watcher.reach import Reach
from shared.book.states import grant_of
from shared.bus.port import BusError, Handler, Incoming, Subscription
from shared.contracts import commands as c
from shared.contracts import subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.envelope import unwrap
from shared.contracts.events import SliceImpaired
from shared.contracts.facts import Fact, SnapshotPage, SnapshotRequest
from shared.model import names
from shared.model.grant import serving_node
from shared.model.objects import Pod
from shared.ports.source import Source
from shared.service import Context, Service, load_simulator

QUEUE = "watcher"
BATCHES_AT_ONCE = 64
HEALTH_S = 1.0
FRESH_S = 15.0
"""Less than a reader of the feed waits for a page: it then asks again, perhaps another watcher."""

Order = TypeVar("Order")


_EVENT_OF = {"cannot-checkpoint": ("NoTurns", "Suspending"), "cannot-move": ("NoMoves", "Suspending")}
"""Reason and action of the Event on a pod, by the code of what its node says; any other one: its programs lost the
GPU."""


class Watcher(Service):
    name: ClassVar[str] = "watcher"
    config_type: ClassVar[type] = Config
    knows_cluster: ClassVar[bool] = True

    async def start(self, ctx: Context) -> None:
        """Raises where the cluster cannot even be addressed; one that does not answer yet is waited for."""
        config: Config = ctx.config
        self._ctx = ctx
        self._subscriptions: list[Subscription] = []
        self._for_good: list[Subscription] = []
        self.epoch = secrets.token_hex(6)
        self.source: Source = await make_source(ctx, config)
        self.core = Core(self.epoch, config)
        self.feed = Feed(ctx.bus, self.core, ctx.log)
        self.reach = Reach(ctx.bus, self.epoch, self.source.reaches, ctx.log)
        writes = self.source.writes
        self._batches = batches = Batches(ctx.metrics, binds_in_flight=config.binds_in_flight)
        self.announcer = Announcer(writes, self._find_pod, lambda: batches.binding > 0, ctx.log)
        self.bindings = Bindings(
            self.core, writes, self.announcer, batches, telemetry=ctx.telemetry, metrics=ctx.metrics
        )
        self.patches = Patches(self.core, writes, self.announcer, batches)
        self.evictions = Evictions(writes, self.announcer, batches)
        export(
            ctx.metrics,
            self.core,
            self.feed,
            reach=self.reach,
            source=self.source,
            announcer=self.announcer,
            batches=batches,
        )
        ctx.health.set("cluster", ok=False, detail="not synced yet")
        ctx.spawn(self.source.run(self._emit), name="source")
        ctx.spawn(self.feed.run(), name="feed")
        ctx.spawn(self.announcer.run(), name="announcer")
        ctx.spawn(self._serve(), name="serve")
        ctx.spawn(self._report_health(), name="health")

    async def drain(self) -> None:
        """Takes no more orders, finishes those in flight, writes the Events that wait."""
        self.reach.state = "ends"
        await self._stop_listening()
        await asyncio.gather(*(subscription.stop() for subscription in self._for_good))
        await self._batches.close()
        await self.announcer.flush()
        await self.source.close()

    async def _serve(self) -> None:
        """Orders and questions are taken only when all that exists is known: before, every node would be unknown."""
        await self.source.wait_synced()
        self._ctx.log.info(
            "watcher_serves", epoch=self.epoch, pods=self.core.count("Pod"), nodes=self.core.count("Node")
        )
        bus = self._ctx.bus
        self._for_good = await self.source.serve(bus, self._ctx.log)
        try:
            self._for_good.append(await bus.subscribe(subjects.QUERY_REACH, self.reach.answer, concurrency=4))
        except BusError as error:  # NATS has the permissions of the version before; then no watcher leaves for this one
            self._ctx.log.warning("reach_not_answered", error=str(error))
        await self._take_part()
        await self.reach.run(self._return, self._leave)

    async def _return(self) -> None:
        """Takes part again, once all that there is now has been read: the watches may have been silent for a while.
        Raises TimeoutError."""
        async with asyncio.timeout(FRESH_S):
            await self.source.refresh()
        await self._take_part()

    async def _take_part(self) -> None:
        """From now on orders and questions come here, and the feed goes out."""
        bus = self._ctx.bus
        self.feed.mute = False
        orders: tuple[tuple[str, Handler], ...] = (
            (subjects.CMD_BIND, self._order(c.BindBatch, self.bindings.bind)),
            (subjects.CMD_PATCH, self._order(c.PatchBatch, self.patches.patch)),
            (subjects.CMD_EVICT, self._order(c.EvictBatch, self.evictions.evict)),
            (subjects.CMD_RESIZE, self._order(c.ResizePod, self.patches.resize)),
        )
        self._subscriptions = [
            *[await bus.subscribe(of, take, queue=QUEUE, concurrency=BATCHES_AT_ONCE) for of, take in orders],
            await bus.subscribe(subjects.SLICES_IMPAIRED, self._impaired, queue=QUEUE),
            await bus.subscribe(subjects.QUERY_SNAPSHOT, self._snapshot, queue=QUEUE, concurrency=4),
            await bus.subscribe(subjects.snapshot_of(self.epoch), self._snapshot, concurrency=4),
        ]
        self.reach.state = "serves"
        self._ctx.health.set("cluster", ok=True, detail=self.source.detail)

    async def _leave(self) -> None:
        """The feed is silent, so its readers turn to another watcher; orders and questions go there."""
        self.reach.state = "left"
        self.feed.mute = True
        await self._stop_listening()

    async def _stop_listening(self) -> None:
        """Nothing more comes here. What is under way is finished."""
        subscriptions, self._subscriptions = self._subscriptions, []
        await asyncio.gather(*(subscription.stop() for subscription in subscriptions))

    async def _report_health(self) -> None:
        """An outage of the API server does not make the watcher unready: it serves what it knows, and reports the
        outage. One that another watcher has replaced is not ready."""
        while True:
            await asyncio.sleep(HEALTH_S)
            detail = self.source.detail
            if self.reach.state == "left":
                detail = f"another watcher works instead, since this one does not reach the API server: {detail}"
            self._ctx.health.set("cluster", ok=self.reach.state == "serves", detail=detail)

    def _emit(self, facts: Sequence[Fact]) -> None:
        self._carry_out(self.core.facts(facts, time.monotonic()))

    def _carry_out(self, commands: list[Command]) -> None:
        for first in self.feed.send(commands):
            self._trace(first.pod)

    def _trace(self, pod: Pod) -> None:
        """The root of the pod's trace, from its creation to our first sight of it."""
        uid, meta = pod.metadata.uid, pod.metadata
        if not self._ctx.telemetry.sampled(uid):
            return
        link = meta.annotations.get(names.ANNOTATION_ADMISSION_TRACEPARENT, "")
        self._ctx.telemetry.pod_span(
            uid,
            "admission",
            root=True,
            start_ns=_created_ns(meta.creation_timestamp),
            links=(link,) if link else (),
            attributes={"k8s.pod.name": meta.name, "k8s.namespace.name": meta.namespace, "k8s.pod.uid": uid},
        )

    def _order(
        self, kind: type[Order], execute: Callable[[Order], Awaitable[c.Answers]]
    ) -> Callable[[Incoming], Awaitable[None]]:
        async def handle(incoming: Incoming) -> None:
            try:
                order = decode(incoming.payload, kind)
            except ContractError as error:
                self._ctx.log.error("order_malformed", subject=incoming.subject, error=str(error))
                # no answer can name what cannot be read; the sender's time-out means "unknown", and it reads back
                return
            answers = await execute(order)
            await self._ctx.bus.respond(incoming, encode(answers))

        return handle

    async def _impaired(self, incoming: Incoming) -> None:
        """An Event on the pod of a slice whose programs have lost the GPU, if the pod, or its GPU, is on the node that
        says so."""
        try:
            _, event = unwrap(incoming.payload)
        except ContractError as error:
            self._ctx.log.error("event_malformed", subject=incoming.subject, error=str(error))
            return
        if not isinstance(event, SliceImpaired):
            return  # of a version that this watcher does not know
        pod = self._find_pod(event.namespace, event.name)
        grant = None if pod is None else grant_of(pod)[0]
        serving = "" if grant is None else serving_node(grant)
        if (
            pod is not None
            and pod.metadata.uid == event.uid
            and event.node in {pod.spec.node_name, serving or pod.spec.node_name}
        ):
            reason, action = _EVENT_OF.get(event.reason, ("GpuLost", "Sharing"))
            self.announcer.tell(event, reason, action, f"container {event.container}: {event.sentence}", warns=True)

    async def _snapshot(self, incoming: Incoming) -> None:
        try:
            request = decode(incoming.payload, SnapshotRequest) if incoming.payload else SnapshotRequest()
        except ContractError as error:
            self._ctx.log.error("snapshot_request_malformed", error=str(error))
            await self._refuse(incoming, str(error))
            return
        if request.fresh and not request.snapshot:
            try:
                async with asyncio.timeout(FRESH_S):
                    await self.source.refresh()
            except TimeoutError:
                await self._refuse(incoming, f"the API server has not said within {FRESH_S:.0f} s what there is now")
                return
        commands, page = self.core.snapshot(request.snapshot, request.page, time.monotonic())
        self._carry_out(commands)
        await self._ctx.bus.respond(incoming, encode(page))

    async def _refuse(self, incoming: Incoming, why: str) -> None:
        refusal = SnapshotPage(epoch=self.epoch, snapshot="", number=0, page=0, pages=0, error=why)
        await self._ctx.bus.respond(incoming, encode(refusal))

    def _find_pod(self, namespace: str, name: str) -> Pod | None:
        found: Pod | None = self.core.find("Pod", name, namespace)
        return found


async def make_source(ctx: Context, config: Config) -> Source:
    """The cluster that the settings name. Imports only what that one needs."""
    if config.source == "simulated":
        source: Source = load_simulator("source").connect(admission_url=config.admission_url, reporter=ctx.instance)
        return source
    from services.watcher.kube_source import connect  # noqa: PLC0415

    return await connect(ctx, config)


def _created_ns(text: str) -> int | None:
    if not text:
        return None
    return int(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()) * 10**9


SERVICE = Watcher
