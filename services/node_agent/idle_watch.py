"""Looks which pods are idle, and tells the core when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from services.node_agent import messages as m
from services.node_agent.core import Agent
from services.node_agent.idle import Idle, IdlePods, Seen
from services.node_agent.strategies.slice_registry import SliceRegistry
from shared.service import Context
from shared.telemetry.metrics import WAITS

LOOK_S = 1.0
"""How often it looks while a pod is suspended that was idle: its program waits for so long until the node says so."""
MOST_S = 5.0
"""How often it looks otherwise; more often where pods are idle sooner."""


class IdleWatch:
    def __init__(
        self,
        ctx: Context,
        agent: Agent,
        registry: SliceRegistry,
        *,
        after_s: float,
        kernels: Callable[[str, tuple[str, ...]], bool | None],
        tell: Callable[[m.Input], Awaitable[object]],
    ) -> None:
        """`kernels`: whether a pod, by UID, has run kernels on these GPUs lately; None: unknown. `tell` passes an input
        to the core."""
        self._ctx, self._agent, self._registry = ctx, agent, registry
        self._kernels, self._tell = kernels, tell
        self._after_s = after_s
        self._pods = IdlePods(after_s)
        self._told: tuple[Idle, Idle] = ({}, {})
        ctx.metrics.observe_by(
            "kerf_agent_idle_pods",
            "Pods that take turns and are idle; by whether they are suspended.",
            self._by_state,
            labels=("suspended",),
        )
        self._waited = ctx.metrics.histogram(
            "kerf_agent_wake_seconds",
            "From the moment at which a program of a suspended idle pod was seen to want the GPU until it had it.",
            buckets=WAITS,
        )

    async def run(self) -> None:
        """Ends at once if no pod ever counts as idle."""
        while self._after_s:
            await self.look(self._ctx.now())
            idle, woken = self._told
            away = woken or any(self._is_suspended(grant_id) for grant_id in idle)
            await asyncio.sleep(LOOK_S if away else max(LOOK_S / 10, min(MOST_S, self._after_s / 2)))

    async def look(self, now: float) -> None:
        """`now`: seconds since 1970."""
        found = self._pods.look(self._seen(), now)
        for waited_s in self._pods.waited_s:
            self._waited.observe(waited_s)
        if found == self._told:
            return
        before, self._told = self._told, found
        for grant_id in found[1].keys() - before[1].keys():
            self._ctx.log.info("idle_pod_wants_its_gpu", grant=grant_id)
        await self._tell(m.IdleSeen(*found))

    def _seen(self) -> Iterator[Seen]:
        for known in self._agent.store.known:
            if known.grant.turns is None or known.releasing or known.unbound or known.is_client:
                continue
            uid = known.grant.uid
            keys = [(uid, lease.container) for lease in self._agent.store.leases_of(known.grant_id)]
            suspended = not known.runs
            uuids = tuple({gpu.uuid for part in known.effective.containers.values() for gpu in part.gpus})
            yield Seen(
                grant_id=known.grant_id,
                suspended=suspended,
                work=None if suspended else self._work(keys),
                wants=any(self._registry.wants(key) for key in keys),
                kernels=None if suspended else self._kernels(uid, uuids),
            )

    def _work(self, keys: list[tuple[str, str]]) -> object:
        """What the slices have counted; None if that is not known of one of them, or if there is none yet."""
        counted = []
        for key in sorted(keys):
            try:
                found = self._registry.read(key)
            except OSError:
                return None  # the observer logs it
            if found is None or found.damage or not found.is_known:
                return None
            counted.append((found.attaches, found.gpus))
        return tuple(counted) or None

    def _is_suspended(self, grant_id: str) -> bool:
        known = self._agent.store.get(grant_id)
        return known is not None and not known.runs

    def _by_state(self) -> dict[tuple[str, ...], float]:
        away = sum(self._is_suspended(grant_id) for grant_id in self._told[0])
        return {("true",): float(away), ("false",): float(len(self._told[0]) - away)}
