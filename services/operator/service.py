"""The operator as a service: follows the cluster, decides while it leads, and carries out what was decided."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import ClassVar

from services.operator.cluster import Cluster
from services.operator.config import Config
from services.operator.core import Core
from services.operator.lease import Leader
from services.operator.messages import Decision
from services.operator.nats_link import NatsLink
from services.operator.nats_servers import wanted_tag
from services.operator.objects import NATS_TLS, Pod
from services.operator.observed import is_own
from shared.bus.port import BusError
from shared.contracts.facts import Fact, Gone, Put
from shared.kube.client import connect
from shared.service import Context, Service

SETTLE_S = 0.05
"""Changes often come together; they are decided on once."""


class Operator(Service):
    """Keeps an installation of Kerf in order."""

    name: ClassVar[str] = "operator"
    config_type: ClassVar[type] = Config
    needs_bus: ClassVar[bool] = False

    async def start(self, ctx: Context) -> None:
        """Raises AccessError where the settings lead to no API server."""
        config: Config = ctx.config
        self._ctx, self._changed = ctx, asyncio.Event()
        self.core = Core(config)
        self._transport = await connect(
            config.kubeconfig, config.context, strict_x509=config.strict_x509, user_agent="kerf-operator"
        )
        self.cluster = Cluster(self._transport, config, self._take, ctx.log, ctx.instance)
        self.leader = Leader(self._transport, config.namespace, ctx.instance, ctx.log, lease_s=config.lease_s)
        self._export(ctx)
        ctx.health.set("cluster", ok=False, detail="not synced yet")
        ctx.spawn(self.cluster.run(), name="cluster")
        ctx.spawn(self._operate(), name="operate")
        if config.nats_url:
            self.link = NatsLink(self._transport, config, self.core.seen, ctx.log, self._callouts)
            ctx.on_drain(self.link.close)
            ctx.spawn(self._serve_nats(), name="nats")

    async def drain(self) -> None:
        """Gives the Lease up, so that the standby takes over at once."""
        await self.leader.release()

    def _take(self, facts: list[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, Put):
                self.core.seen.put(fact.object)
            elif isinstance(fact, Gone):
                self.core.seen.gone(fact.object)
        # Pods come and go all the time, and few of them matter here.
        if self.core.unfinished or not all(isinstance(f.object, Pod) and not is_own(f.object) for f in facts):
            self._changed.set()

    async def _operate(self) -> None:
        """Nothing is decided before all is known: what is not seen yet would be made anew."""
        await self.cluster.wait_synced()
        self._ctx.health.set("cluster", ok=True)
        self._ctx.log.info("cluster_known", nodes=len(self.core.seen.nodes))
        self._ctx.spawn(self.leader.run(), name="lease")
        config: Config = self._ctx.config
        again_s = config.check_s
        while True:
            await self._wake(again_s)
            self._ctx.health.set("cluster", ok=True, detail=self.cluster.problem)
            again_s = config.check_s
            if self.leader.leading:
                decision = self.core.decide(time.time(), secrets.token_bytes)
                if not await self._carry_out(decision):
                    again_s = config.retry_s
                elif self.core.unfinished:
                    self._changed.set()

    async def _serve_nats(self) -> None:
        """Answers the servers' questions; the leader looks after the servers too. What fails is tried again."""
        config: Config = self._ctx.config
        await self.cluster.wait_synced()
        served = True
        while True:
            pause_s = config.retry_s
            try:
                await self.link.serve()
                if not served:
                    self._ctx.log.info("nats_served_again")
                served, pause_s = True, config.check_s
            except BusError as error:
                if served:
                    self._ctx.log.warning("nats_not_served", error=str(error))
                served = False
            if self.leader.leading:
                seen = self.core.seen
                state = await self.link.look_after(seen.certificate_end(NATS_TLS), wanted_tag(seen.stateful_set))
                if state != self.core.seen.nats:
                    self.core.seen.nats = state
                    self._changed.set()
                if state.stale or state.problem:
                    pause_s = config.retry_s
            await asyncio.sleep(pause_s)

    async def _wake(self, within_s: float) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self._changed, self.leader.changed)]
        try:
            await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        await asyncio.sleep(SETTLE_S)
        self._changed.clear()
        self.leader.changed.clear()

    async def _carry_out(self, decision: Decision) -> bool:
        """Whether all was written. What was not is decided anew, on what is there then."""
        good = True
        for write in decision.writes:
            result = await self.cluster.write(write)
            self._writes.of(write.resource.plural, result.outcome).add()
            done = result.outcome == "done"
            # A conflict: the object has changed, and the watch brings what it is now.
            log = self._ctx.log.info if done or result.outcome == "conflict" else self._ctx.log.error
            log("written", why=write.why, outcome=result.outcome, message=result.message)
            if not done:
                good = False
                self.core.again(write)
        for notice in decision.notices:
            result = await self.cluster.announce(notice, time.time())
            if result.outcome != "done":
                self._ctx.log.error("event_not_written", reason=notice.reason, note=notice.note, message=result.message)
        return good

    def _export(self, ctx: Context) -> None:
        m, core = ctx.metrics, self.core
        self._writes = m.counter(
            "kerf_operator_writes_total", "Writes to the API server, by what was written and what became of it.",
            ("object", "outcome"),
        )  # fmt: skip
        self._callouts = m.counter(
            "kerf_operator_callouts_total", "NATS clients that came by token, by what was answered.", ("outcome",)
        )
        m.observe_by(
            "kerf_certificate_not_after_seconds",
            "When a certificate ends, in Unix seconds.",
            core.seen.ends,
            labels=("name",),
        )
        m.observe_by(
            "kerf_certificate_not_before_seconds",
            "When a certificate begins, in Unix seconds.",
            core.seen.begins,
            labels=("name",),
        )
        m.observe_by("kerf_operator_leading", "1 while this operator leads.", lambda: float(self.leader.leading))
        m.observe_by("kerf_operator_nodes_enrolled", "Nodes that Kerf manages.", lambda: float(core.seen.enrolled))
        m.observe_by(
            "kerf_operator_condition",
            "1 where a condition of the installation is met; known by the leader alone.",
            lambda: {(c.type,): float(c.status == "True") for c in core.conditions},
            labels=("type",),
        )


SERVICE = Operator
