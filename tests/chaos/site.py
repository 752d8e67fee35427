"""What every cluster of this folder consists of: an API server, NATS, a connection that can be cut, and services as
processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, TypeVar

from cli.up import node_object
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError
from shared.contracts import queries
from shared.contracts.base import decode, encode
from shared.contracts.queries import StatusAnswer, StatusQuery
from shared.kube.client import connect
from shared.kube.transport import Transport
from tests.chaos.processes import Process
from tests.support.nats_cluster import NatsCluster
from tests.support.wire import Wire
from tools.control_plane import ControlPlane

T = TypeVar("T")


class Site:
    def __init__(
        self,
        plane: ControlPlane,
        nats: EmbeddedServer | NatsCluster,
        wire: Wire,
        kube: Transport,
        bus: NatsBus,
        state: Path,
    ) -> None:
        self.plane, self._nats, self.wire, self.kube, self.bus, self.state = plane, nats, wire, kube, bus, state
        self.services: dict[str, Process] = {}

    @property
    def nats_url(self) -> str:
        return self._nats.url

    @property
    def nats(self) -> EmbeddedServer:
        """The one server."""
        assert isinstance(self._nats, EmbeddedServer), "there are several servers"
        return self._nats

    def watcher_kubeconfig(self, name: str = "watcher", way: Wire | None = None) -> Path:
        """The watchers' way to the API server leads through the wire, and before it through `way`."""
        kubeconfig = json.loads(self.plane.service_account("kerf-system", "kerf-watcher").read_text())
        kubeconfig["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{(way or self.wire).port}"
        path = self.state / f"{name}.kubeconfig"
        path.write_text(json.dumps(kubeconfig))
        return path

    async def create_nodes(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            await self.post("/api/v1/nodes", node_object({"name": name}))

    async def post(self, path: str, body: dict[str, Any]) -> None:
        status, answer = await asyncio.to_thread(self.plane.request, "POST", path, body)
        assert status == 201, answer

    def repair(self) -> int:
        """Nothing is held up and every service runs; how many had to be started."""
        self.wire.refuse(False)
        self.wire.thaw()
        self.wire.hold_answers(False)
        for process in self.services.values():
            if process.frozen:
                process.thaw()
        dead = [process for process in self.services.values() if not process.alive]
        for process in dead:
            process.start()
        return len(dead)

    def stop(self) -> None:
        for process in self.services.values():
            process.kill()

    def tails(self) -> str:
        return "\n".join(process.tail() for process in self.services.values())

    async def ask(self, subject: str, question: Any, kind: type[T]) -> T | None:
        """None while no service answers."""
        try:
            return decode(await self.bus.request(subject, encode(question), timeout_s=3), kind)
        except BusError:
            return None

    async def status(self) -> StatusAnswer | None:
        return await self.ask(queries.STATUS.subject, StatusQuery(), StatusAnswer)

    def process_of(self, status: StatusAnswer) -> Process | None:
        """The process that answered; its id is in the holder's name. None if it has ended since."""
        pid = int(status.holder.rsplit("-", 2)[1])
        return next((process for process in self.services.values() if process.alive and process.pid == pid), None)


@contextlib.asynccontextmanager
async def on_site(
    plane: ControlPlane, state: Path, nats: EmbeddedServer | NatsCluster | None = None
) -> AsyncIterator[Site]:
    """A site of which nothing runs yet but NATS: one server, or these, which are stopped on the way out. There its
    processes are killed too."""
    async with contextlib.AsyncExitStack() as stack:
        nats = nats or EmbeddedServer()
        await stack.enter_async_context(nats)
        wire = await stack.enter_async_context(Wire(plane.port))
        kube = await connect(str(plane.kubeconfig()))
        stack.push_async_callback(kube.close)
        bus = await NatsBus.connect(nats.url, name="chaos")
        stack.push_async_callback(bus.drain)
        site = Site(plane, nats, wire, kube, bus, state)
        stack.callback(site.stop)
        yield site
