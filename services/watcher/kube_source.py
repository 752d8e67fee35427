"""A real cluster: one reflector per kind, and writes through the same transport."""

from __future__ import annotations

import asyncio
from typing import Any

from services.watcher.config import WRITES_IN_FLIGHT, Config
from shared.bus.port import Bus, Subscription
from shared.kube import resources
from shared.kube.client import connect as connect_transport
from shared.kube.reflector import Reflector
from shared.kube.timing import CLOSE, Timing
from shared.kube.transport import Transport, TransportError
from shared.kube.writes import Writes
from shared.ports.source import Emit
from shared.service import Context

PLACING = (resources.NODE, resources.POD)
"""What double bookings depend on, and each pod that is to be placed."""
UNREAD_S = 30.0
"""How long the start waits for a kind that only describes gangs."""
ANSWER_S = 3.0
"""A server that takes longer for the list of one node is not reached."""


class KubeSource:
    """A Source over an API server. It owns the transport."""

    def __init__(
        self,
        transport: Transport,
        log: Any,
        *,
        reporter: str,
        timing: Timing | None = None,
        watch_list: bool = True,
        kinds: tuple[resources.Resource, ...] = resources.REFLECTED,
        unread_s: float = UNREAD_S,
    ) -> None:
        self._log, self._unread_s = log, unread_s
        self.transport = transport
        self._writes = Writes(transport, reporter=reporter)
        self._emit: Emit = _nobody
        self.reflectors = {
            resource.title: Reflector(
                transport,
                resource,
                self._pass_on,
                log,
                timing=timing or (CLOSE if resource in PLACING else None),
                watch_list=watch_list,
            )
            for resource in kinds
        }

    @property
    def synced(self) -> bool:
        return all(reflector.synced for reflector in self.reflectors.values())

    @property
    def detail(self) -> str:
        problems = [f"{kind}: {r.problem}" for kind, r in self.reflectors.items() if r.problem]
        return "; ".join(problems)[:500] or "every kind is followed"

    @property
    def troubled(self) -> int:
        return sum(1 for reflector in self.reflectors.values() if reflector.problem)

    @property
    def writes(self) -> Writes:
        return self._writes

    async def run(self, emit: Emit) -> None:
        self._emit = emit
        async with asyncio.TaskGroup() as group:
            for kind, reflector in self.reflectors.items():
                group.create_task(reflector.run(), name=f"reflector:{kind}")

    async def wait_synced(self) -> None:
        """Returns when all kinds have been read, except for other systems' kinds that cannot be: such a kind may have
        lost its conversion webhook, or its rights. Pods that name an object of it wait, and no others."""
        await asyncio.gather(*map(self._wait_for, self.reflectors.values()))

    async def _wait_for(self, reflector: Reflector) -> None:
        if not reflector.resource.discovered:
            await reflector.wait_synced()
            return
        try:
            async with asyncio.timeout(self._unread_s):
                await reflector.wait_synced()
        except TimeoutError:
            self._log.warning(
                "kind_not_read",
                kind=reflector.resource.title,
                why=reflector.problem,
                effect="pods whose gang is described by an object of this kind wait until it can be read",
            )

    async def refresh(self) -> None:
        """Nodes and pods; what else there is can only make a decision too careful, never double."""
        await asyncio.gather(*(reflector.refresh() for reflector in self._placing()))

    async def reaches(self) -> bool:
        if any(reflector.problem for reflector in self._placing()):
            return False
        try:
            path = f"{resources.NODE.collection()}?limit=1"
            response = await self.transport.request("GET", path, timeout_s=ANSWER_S)
        except TransportError:
            return False
        return response.status not in (401, 403) and response.status < 500

    def _placing(self) -> list[Reflector]:
        return [self.reflectors[kind.title] for kind in PLACING if kind.title in self.reflectors]

    async def serve(self, bus: Bus, log: Any) -> list[Subscription]:  # noqa: ARG002
        """An API server takes no orders from the bus."""
        return []

    async def close(self) -> None:
        await self.transport.close()

    def _pass_on(self, facts: Any) -> None:
        self._emit(facts)


async def connect(ctx: Context, config: Config) -> KubeSource:
    """Raises AccessError where the settings lead to no API server."""
    transport = await connect_transport(
        config.kubeconfig,
        config.context,
        strict_x509=config.strict_x509,
        max_connections=config.binds_in_flight + WRITES_IN_FLIGHT + 16,
        user_agent="kerf-watcher",
    )
    return KubeSource(transport, ctx.log, reporter=ctx.instance)


def _nobody(_: Any) -> None:
    raise RuntimeError("the source was not started by run()")
