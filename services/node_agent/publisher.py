"""Publishes for the agents: events, heartbeats, evictions and inventories.

Inventories are put into the key-value store again when the store has lost them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from services.node_agent import messages as m
from shared.bus.port import BusError, Incoming, level_of
from shared.contracts import subjects
from shared.contracts.base import ContractError, Message, decode, encode
from shared.contracts.commands import Answers, Evict, EvictBatch
from shared.contracts.envelope import wrap
from shared.contracts.events import SliceEnforced, SliceReleased
from shared.contracts.node_commands import Beat, Released
from shared.model.gpu import Inventory
from shared.service import Context

CHECK_STORE_S = 15.0
"""How often the agent checks that the store still has an inventory: the store may be lost without a broken
connection."""
RETRY_S = 1.0
MAX_CONCURRENT_PUTS = 32
EVICT_TIMEOUT_S = 10.0


class Publisher:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._source, self._sequences = f"/kerf/node_agent/{ctx.instance}", itertools.count(1)
        self._kv = ctx.bus.kv(subjects.KV_NODES)
        self._inventories: dict[str, Inventory] = {}
        self._unpublished: set[str] = set()
        self._wake, self._publishing = asyncio.Event(), asyncio.Lock()
        ctx.bus.on_reconnect(self._republish_all)
        ctx.spawn(self._keep_published(), name="inventories")

    async def answer(self, incoming: Incoming | None, answer: Message) -> None:
        """One that cannot be sent ends nothing: it was carried out, and a leader without an answer orders it again."""
        try:
            if incoming is not None:
                await self._ctx.bus.respond(incoming, encode(answer))
        except BusError as error:
            getattr(self._ctx.log, level_of(error))("answer_not_sent", answer=str(answer), error=str(error))

    def publish(self, node: str, order: m.Publish) -> None:
        event = order.event
        if isinstance(event, SliceReleased):
            self._released(node, Released(grant_id=event.grant_id, reason=event.reason))
        if isinstance(event, SliceEnforced):
            self._ctx.telemetry.pod_span(
                event.uid,
                "slice",
                attributes={
                    "k8s.node.name": event.node,
                    "kerf.container": event.container,
                    "kerf.grant": event.grant_id,
                    "kerf.strategy": event.strategy,
                },
            )
        if order.namespace:
            subject = subjects.event_in_namespace(event.ENTITY, event.VERB, order.namespace)
        else:
            subject = subjects.event_on_node(event.ENTITY, event.VERB, node)
        at_s, trace, number = self._ctx.now(), order.traceparent, f"{next(self._sequences):012d}"
        identity, payload = wrap(
            event, source=self._source, now_s=at_s, traceparent=trace, event_id=order.event_id, sequence=number
        )
        self._ctx.bus.publish_event(subject, payload, identity, traceparent=trace)

    def _released(self, node: str, released: Released) -> None:
        """Sends a release to placement, on this node's own subject.

        On another node's subject it would have no effect. A lost message is repeated until placement has acknowledged
        the release.
        """
        self._ctx.spawn(self._send_release(subjects.release(node), encode(released)), name="release")

    async def _send_release(self, subject: str, payload: bytes) -> None:
        try:
            await self._ctx.bus.publish(subject, payload)
        except BusError as error:
            self._ctx.log.warning("release_not_sent", subject=subject, error=str(error))

    def evict(self, evictions: tuple[Evict, ...]) -> None:
        """Asks the watcher to evict these pods. The caller repeats what does not succeed."""
        self._ctx.spawn(self._evict(evictions), name="evict")

    async def _evict(self, evictions: tuple[Evict, ...]) -> None:
        for eviction in evictions:
            self._ctx.log.warning("evicting", pod=f"{eviction.namespace}/{eviction.name}", why=eviction.reason)
        try:
            reply = await self._ctx.bus.request(
                subjects.CMD_EVICT, encode(EvictBatch(evictions=evictions)), timeout_s=EVICT_TIMEOUT_S
            )
            for answer in decode(reply, Answers).answers:
                self._ctx.log.warning("not_evicted", uid=answer.uid, outcome=answer.outcome, why=answer.message)
        except (BusError, ContractError) as error:
            self._ctx.log.warning("evictions_unanswered", error=str(error))

    def put(self, inventory: Inventory) -> None:
        self._inventories[inventory.node] = inventory
        self._unpublished.add(inventory.node)
        self._wake.set()

    async def send_heartbeats(self, subject: str, nodes: Callable[[], tuple[str, ...]], every_s: float) -> None:
        """Sends heartbeats for ever. One that cannot be sent is not made up for: the next one says the same."""
        while True:
            if self._ctx.bus.connected:
                await self._ctx.bus.publish(subject, encode(Beat(nodes=nodes())))
            await asyncio.sleep(every_s)

    async def _republish_all(self) -> None:
        self._unpublished.update(self._inventories)
        self._wake.set()

    async def _keep_published(self) -> None:
        while True:
            try:
                async with asyncio.timeout(CHECK_STORE_S):
                    await self._wake.wait()
            except TimeoutError:
                await self._check_store()
            self._wake.clear()
            if not await self.publish_inventories():
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def publish_inventories(self) -> bool:
        """Puts the inventories that are not in the store yet. Returns False if one could not be put."""
        all_put = True
        async with self._publishing:
            while self._unpublished and all_put:
                names = [self._unpublished.pop() for _ in range(min(MAX_CONCURRENT_PUTS, len(self._unpublished)))]
                results = await asyncio.gather(*(self._put(name) for name in names), return_exceptions=True)
                for name, result in zip(names, results, strict=True):
                    if isinstance(result, BusError):
                        getattr(self._ctx.log, level_of(result))("inventory_not_put", node=name, error=str(result))
                        self._unpublished.add(name)
                        all_put = False
                    elif isinstance(result, BaseException):
                        raise result
        self._ctx.health.set(
            "inventory",
            ok=not self._unpublished,
            detail=f"{len(self._unpublished)} of {len(self._inventories)} not yet published",
        )
        return all_put

    async def _put(self, name: str) -> int:
        return await self._kv.put(subjects.token(name), encode(self._inventories[name]))

    async def _check_store(self) -> None:
        """Checks one key for all of them: they were put into the same store."""
        name = next(iter(self._inventories), None)
        if name is None:
            return
        try:
            entry = await self._kv.get(subjects.token(name))
        except BusError as error:
            getattr(self._ctx.log, level_of(error))("inventory_store_unreadable", error=str(error))
            await self._republish_all()
            return
        if entry.value is None:
            self._ctx.log.warning("inventory_store_lost", nodes=len(self._inventories))
            await self._republish_all()
