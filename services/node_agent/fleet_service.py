"""Runs the agents of simulated nodes: one subscription per command for all of them, and nothing on disk."""

from __future__ import annotations

import asyncio

from services.node_agent import commands
from services.node_agent import messages as m
from services.node_agent.fleet import Fleet
from services.node_agent.publisher import Publisher
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.service import Context

TICK_S = 1.0


class FleetRuntime:
    def __init__(self, ctx: Context, fleet: Fleet) -> None:
        self._ctx, self._fleet, self._publisher = ctx, fleet, Publisher(ctx)
        self._handed = ctx.metrics.counter("kerf_agent_handed_over_total", "Slices handed over.")
        self._refused = ctx.metrics.counter("kerf_agent_refused_total", "Hand-overs refused, by reason.", ("code",))

    async def start(self, beat_s: float) -> None:
        ctx, names = self._ctx, self._fleet.names
        for verb in commands.VERBS:
            await ctx.bus.subscribe(subjects.node_command("*", verb), self._came)
        for name in names:
            await self._do(name, self._fleet.boot(name, ctx.now()), None)
        ctx.bus.on_reconnect(self._reconnected)
        ctx.spawn(self._ticks(), name="ticks")
        ctx.spawn(self._publisher.send_heartbeats(subjects.HEARTBEAT_HOLLOW, lambda: names, beat_s), name="heartbeats")
        ctx.metrics.observe_by("kerf_agent_nodes", "Nodes that this process simulates.", lambda: float(len(names)))
        ctx.log.info("hollow_nodes_up", count=len(names))

    async def _came(self, incoming: Incoming) -> None:
        token, event = commands.read(incoming.subject, incoming.payload)
        node = self._fleet.by_token.get(token)
        if node is not None:
            await self._do(node, self._fleet.handle(node, event, self._ctx.now()), incoming)

    async def _reconnected(self) -> None:
        for name in self._fleet.names:
            await self._do(name, self._fleet.handle(name, m.Reconnected(), self._ctx.now()), None)

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = self._ctx.now()
            for name in self._fleet.names:
                await self._do(name, self._fleet.handle(name, m.Tick(), now), None)

    async def _do(self, node: str, orders: list[m.Command], incoming: Incoming | None) -> None:
        for order in orders:
            match order:
                case m.Publish():
                    self._publisher.publish(node, order)
                case m.Answer():
                    await self._publisher.answer(incoming, order.body)
                case m.HandOver():
                    self._handed.add()
                case m.PutInventory():
                    self._publisher.put(order.inventory)
                case m.RefuseStart():
                    self._refused.of(order.code).add()
                    self._ctx.log.warning(
                        "hand_over_refused", node=node, uid=order.uid, code=order.code, why=order.sentence
                    )
