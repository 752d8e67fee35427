"""Carries out the core's orders about servers for other nodes, and watches whether these run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from services.node_agent import messages as m
from services.node_agent.cdi.spec import ContainerEdits
from services.node_agent.core import Agent
from services.node_agent.grant_store import Key
from services.node_agent.remote_port import RemoteServing
from shared.model.network import RemoteAbility
from shared.service import Context

WATCH_S = 1.0


class ServerRunner:
    """Calls the port one after the other for each container, and tells the core what became of it."""

    def __init__(
        self, ctx: Context, agent: Agent, port: RemoteServing | None, tell: Callable[[m.Input], Awaitable[object]]
    ) -> None:
        """`port` None: this agent hands nothing over, so it can neither start nor end a server, nor see one. `tell`
        passes an input to the core."""
        self._ctx, self._agent, self._port, self._tell = ctx, agent, port, tell
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        """By container, for as long as anything is done about it."""
        self._up: dict[Key, str] = {}
        """The grants of the servers that were started and not seen to end, by container."""

    def ability(self) -> RemoteAbility:
        """What this node offers now."""
        return RemoteAbility() if self._port is None else self._port.ability()

    async def start(self) -> None:
        """Ends what no lease is for before the first order is heard: nothing else counts it. Raises OSError where it
        does not end."""
        if self._port is None:
            return
        await self.check(self._port)
        if left := self._without_lease(self._port):
            raise OSError(f"servers for other nodes run without a lease, and do not end: {sorted(left)}")
        self._ctx.spawn(self._watch(self._port), name="servers")

    def carry_out(self, order: m.Serve | m.FindServer | m.EndServer | m.ClientEnded) -> None:
        """In a task of its own: a server may take seconds, and other requests wait meanwhile."""
        self._ctx.spawn(self._carry_out(order), name="server")

    async def edits(self, order: m.HandOver) -> ContainerEdits:
        """What a container gets that uses a GPU of another node. Raises SliceNotReady."""
        if order.remote is None or self._port is None:
            raise m.SliceNotReady("this agent cannot use GPUs of other nodes")
        return await self._port.client_edits(
            order.uid, order.grant_id, order.container, order.share, order.remote.address
        )

    async def _carry_out(self, order: m.Serve | m.FindServer | m.EndServer | m.ClientEnded) -> None:
        key = (order.uid, order.container)
        async with self._locks.setdefault(key, asyncio.Lock()):
            match order:
                case m.Serve():
                    await self._tell(m.ServerStarted(*key, order.grant_id, await self._serve(order)))
                case m.FindServer():
                    await self._tell(m.ServerFound(*key, order.grant_id, self._find(order)))
                case m.EndServer():
                    await self._tell(await self._end(order))
                case m.ClientEnded() if self._port is not None:
                    try:
                        await self._port.client_ended(*key)
                    except OSError as error:  # the port looks after what is left itself
                        self._ctx.log.error("client_not_ended", pod=order.uid, error=str(error))

    async def _serve(self, order: m.Serve) -> str:
        if self._port is None:
            return "this agent serves no GPU to other nodes"
        key = (order.uid, order.container)
        try:
            why = await self._port.serve(order.uid, order.grant_id, order.container, order.share, order.peer)
        except OSError as error:
            why = str(error) or type(error).__name__
        if not why:
            self._up[key] = order.grant_id
        self._ctx.log.info("server_not_started" if why else "server_started", pod=order.uid, peer=order.peer, why=why)
        return why

    def _find(self, order: m.FindServer) -> bool:
        """Whether it runs; also where that cannot be seen: then its GPU stays taken."""
        if self._port is None:
            return True
        runs = self._port.find(order.uid, order.grant_id, order.container, order.peer)
        if runs:
            self._up[order.uid, order.container] = order.grant_id
        self._ctx.log.info("server_found" if runs else "server_not_found", pod=order.uid, peer=order.peer)
        return runs

    async def _end(self, order: m.EndServer) -> m.Input:
        key = (order.uid, order.container)
        self._up.pop(key, None)
        try:
            if self._port is None:
                raise OSError("this agent hands nothing over, and cannot see what runs")
            await self._port.end(order.uid, order.grant_id, order.container)
        except OSError as error:
            self._ctx.log.error("server_not_ended", pod=order.uid, container=order.container, error=str(error))
            return m.ServerStillRuns(*key, order.grant_id)
        self._ctx.log.info("server_ended", pod=order.uid, container=order.container)
        return m.ServerEnded(*key, order.grant_id)

    async def _watch(self, port: RemoteServing) -> None:
        """Tells the core of servers that ended by themselves, and ends those that no lease is for."""
        while True:
            await asyncio.sleep(WATCH_S)
            await self.check(port)

    async def check(self, port: RemoteServing) -> None:
        for key in self._up.keys() - port.running():
            async with self._locks.setdefault(key, asyncio.Lock()):
                if key in self._up and key not in port.running():
                    grant_id = self._up.pop(key)
                    await self._tell(m.ServerEnded(*key, grant_id, by_itself="nothing of it runs any more"))
        for uid, container in self._without_lease(port):
            # Of an agent whose checkpoint was lost, or of a start that failed halfway.
            async with self._locks.setdefault((uid, container), asyncio.Lock()):
                if not any((live.uid, live.container) == (uid, container) for live in self._agent.live()):
                    self._ctx.log.warning("server_without_lease", pod=uid, container=container)
                    try:
                        await port.end(uid, "", container)
                    except OSError as error:
                        self._ctx.log.error("server_not_ended", pod=uid, container=container, error=str(error))

    def _without_lease(self, port: RemoteServing) -> frozenset[Key]:
        leased = {(live.uid, live.container) for live in self._agent.live() if live.remote is not None}
        return port.running() - leased


def client_containers(agent: Agent) -> frozenset[Key]:
    """The containers of this node that use GPUs of others."""
    return frozenset((live.uid, live.container) for live in agent.containers() if live.remote is not None)
