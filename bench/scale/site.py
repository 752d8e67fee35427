"""The cluster of a run: NATS, an API server (real or simulated), Kerf's services as processes, and hollow nodes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import structlog

from bench import cluster
from bench.booked import Booked
from bench.processes import cpu_s, rss_mb
from bench.scale import measured
from bench.scale.load import MEMORY_MIB, NAMESPACE, Load
from cli.up import apply, node_object
from shared.bus.embedded import EmbeddedServer
from shared.bus.feed import Feed
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError
from shared.contracts import queries
from shared.contracts.base import decode, encode
from shared.contracts.facts import Fact
from shared.contracts.queries import StatusAnswer, StatusQuery
from shared.kube.reflector import Reflector
from shared.kube.resources import POD
from shared.kube.transport import Transport, TransportError
from shared.model.hollow_node import HollowNode
from tests.chaos.processes import Process
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane, find_binaries, free_ports

GPUS = 8
NODES_A_PROCESS = 1000
PATIENCE_S = 900.0
"""For what takes long on a slow machine; a run that hangs ends by it."""
PAGE = 1000
CREATE_TIMEOUT_S, CREATE_AGAIN_S = 20.0, 0.5
AGAIN = (429, 500, 503, 504)
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def node_name(number: int) -> str:
    return f"node-{number:05d}"


class Site:
    def __init__(
        self, state: Path, nodes: int, nats: EmbeddedServer, monitor: int, bus: NatsBus, plane: ControlPlane | None
    ) -> None:
        self.state, self.nodes, self.nats, self.monitor, self.bus, self.plane = state, nodes, nats, monitor, bus, plane
        self.kube: Transport | None = None
        self.ports: dict[str, int] = {}
        """Where each process serves its health and its metrics."""
        self.services: dict[str, Process] = {}
        self.agents: dict[str, int] = {}
        """How many nodes each agent process has."""
        self.creations_repeated = 0
        """Creations of pods that were not answered in time, or refused for now."""
        self.running: set[str] = set()
        """The processes that are meant to run now."""

    # --- making -----------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Names every process; none runs yet. The simulated API server lives in the one watcher."""
        if self.plane is None:
            self._add("watcher", 1, {"KERF_SOURCE": "simulated"})
        else:
            account = str(self.plane.service_account("kerf-system", "kerf-watcher"))
            admin = {"KERF_KUBECONFIG": str(self.plane.kubeconfig())}
            self._add("watcher", 2, {"KERF_KUBECONFIG": account})
            self._add("operator", 1, admin | {"KERF_OPERATOR_NATS_URL": "", "KERF_OPERATOR_WEBHOOK": ""})
            self._add("admission", 1, {"KERF_ADMISSION_HOST": "127.0.0.1", "KERF_ADMISSION_PORT": "0"})
        self._add("placement", 2, {})
        self._add("preemptor", 1, {})
        self._add("metrics", 1, {"KERF_DATABASE": str(self.state / "usage.db")})
        count = max(2, math.ceil(self.nodes / NODES_A_PROCESS))
        for i in range(count):
            mine = range(i, self.nodes, count)
            file = self.state / f"hollow-{i}.json"
            file.write_bytes(
                encode([HollowNode(name=node_name(n), count=GPUS, memory_mib=MEMORY_MIB, nvlinks=18) for n in mine])
            )
            self._add("node_agent", 1, {"KERF_HOLLOW_FILE": str(file)}, first=i)
            self.agents[f"node_agent-{i}"] = len(mine)

    def _add(self, module: str, count: int, environment: dict[str, str], *, first: int = 0) -> None:
        for name, port in zip((f"{module}-{first + i}" for i in range(count)), free_ports(count), strict=True):
            self.ports[name] = port
            common = {"KERF_NATS_URL": self.nats.url, "KERF_LOG_LEVEL": "info", "KERF_HTTP_PORT": str(port)}
            self.services[name] = Process(name, module, common | environment, self.state)

    async def create_nodes(self) -> None:
        objects = [node_object({"name": node_name(n)}) for n in range(self.nodes)]
        if self.kube is None:
            await eventually(
                functools.partial(self.is_ready, "watcher-0"), within_s=PATIENCE_S, every_s=0.2, what="the watcher"
            )
            answer = await apply(self.bus, objects)
            if answer.refusals:
                raise RuntimeError(f"nodes: {answer.refusals[:3]}")
            return
        kube = self.kube
        await cluster.in_flight(len(objects), 16, lambda i: cluster.must(kube, "POST", "/api/v1/nodes", objects[i]))

    async def create_pod(self, made: dict[str, Any]) -> None:
        """Repeated until the server has answered it, as a controller does: at this size a server is late at times."""
        if self.kube is not None:
            body = msgspec.json.encode(made)
            while True:
                try:
                    answer = await self.kube.request("POST", PODS, body, timeout_s=CREATE_TIMEOUT_S)
                except TransportError:
                    self.creations_repeated += 1
                    continue
                if answer.status in (201, 409):  # 409: an earlier attempt, whose answer was late, has created it
                    return
                if answer.status not in AGAIN:
                    raise RuntimeError(f"create: {answer.status} {answer.body[:300]!r}")
                self.creations_repeated += 1
                await asyncio.sleep(CREATE_AGAIN_S)
        applied = await apply(self.bus, [made | {"spec": made["spec"] | {"schedulerName": "kerf"} | _TOLERATES}])
        if applied.refusals:
            raise RuntimeError(f"pod: {applied.refusals[0]}")

    async def start(self, *processes: Process) -> None:
        for process in processes:
            await asyncio.to_thread(process.start)
            self.running.add(process.name)

    async def kill(self, *processes: Process) -> None:
        """SIGKILL, all of them before one is waited for."""
        for process in processes:
            self.running.discard(process.name)
        await asyncio.gather(*(asyncio.to_thread(process.kill) for process in processes))

    def stop(self) -> None:
        for process in self.services.values():
            process.kill()

    async def end(self, process: Process) -> None:
        """In order, as a rolling upgrade does."""
        self.running.discard(process.name)
        await asyncio.to_thread(process.end)

    # --- looking ----------------------------------------------------------------------------------------------------

    async def watch(self, load: Load) -> None:
        """Tells the load what becomes of pods, until cancelled: from the API server, or from the simulated one's
        feed."""
        if self.kube is not None:
            await Reflector(self.kube, POD, load.take, structlog.get_logger("bench")).run()
            return

        async def snapshot(facts: tuple[Fact, ...], _: int) -> None:
            load.take(facts)

        async def heard(facts: tuple[Fact, ...]) -> None:
            load.take(facts)

        feed = Feed(self.bus, snapshot, heard)
        feed.want_snapshot()
        await feed.run()

    async def status(self) -> StatusAnswer | None:
        """None while no leader answers."""
        try:
            answer = await self.bus.request(queries.STATUS.subject, encode(StatusQuery()), timeout_s=5)
        except BusError:
            return None
        return decode(answer, StatusAnswer)

    async def whole(self) -> bool:
        """A leader knows every node, and every node's agent has answered its term."""
        self.check()
        status = await self.status()
        return status is not None and self.nodes == status.nodes == status.synced_nodes == status.agents_ready

    async def leader(self) -> Process:
        async def found() -> Process | None:
            status = await self.status()
            pid = 0 if status is None else int(status.holder.rsplit("-", 2)[1])
            return next((one for one in self.services.values() if one.alive and one.pid == pid), None)

        process: Process = await eventually(found, within_s=PATIENCE_S, every_s=0.1, what="a leader")
        return process

    async def is_ready(self, name: str) -> bool:
        """Whether the process says so on /readyz."""
        try:
            await asyncio.to_thread(measured.fetch, self.ports[name], "/readyz")
        except (OSError, RuntimeError):
            return False
        return True

    def check(self) -> None:
        """Raises RuntimeError with the end of its log if a process has ended by itself."""
        for process in self.services.values():
            if process.name in self.running and not process.alive:
                raise RuntimeError(f"{process.name} ended:\n{process.tail()}")

    def cpu(self) -> dict[str, float]:
        """Seconds so far by process, those of the control plane and of NATS too."""
        own = {name: cpu_s(process.pid) for name, process in self.services.items() if process.alive}
        return own | {"nats": cpu_s(self.nats.pid)} | ({} if self.plane is None else self.plane.cpu_seconds())

    def rss(self) -> dict[str, float]:
        own = {name: rss_mb(process.pid) for name, process in self.services.items() if process.alive}
        plane = {} if self.plane is None else {name: rss_mb(p.pid) for name, p in self.plane.processes.items()}
        return own | {"nats": rss_mb(self.nats.pid)} | plane

    async def series(self) -> dict[str, dict[str, int]]:
        """By process, how many series each of its metrics has."""
        return {
            name: measured.series(await asyncio.to_thread(measured.fetch, port, "/metrics"))
            for name, port in self.ports.items()
        }

    async def booked(self) -> Booked:
        """All pods of the API server, page by page. Raises RuntimeError on the simulated one, which serves no list."""
        if self.kube is None:
            raise RuntimeError("the simulated API server lists nothing to others")
        found, token = Booked(), ""
        while True:
            answer = await self.kube.request("GET", f"{PODS}?limit={PAGE}&continue={token}", timeout_s=60.0)
            if answer.status != 200:
                raise RuntimeError(f"the list of pods: {answer.status} {answer.body[:300]!r}")
            page = msgspec.json.decode(answer.body)
            found.add(page["items"])
            token = page["metadata"].get("continue", "")
            if not token:
                return found


_TOLERATES = {"tolerations": [{"key": "kerf.dev/managed", "operator": "Exists", "effect": "NoSchedule"}]}
"""On a real API server the policies complete this."""


@contextlib.asynccontextmanager
async def on_site(state: Path, nodes: int, *, simulated: bool) -> AsyncIterator[Site]:
    """A site of which nothing but NATS and the control plane runs yet. On the way out all its processes are killed."""
    async with contextlib.AsyncExitStack() as stack:
        plane = None
        if not simulated:
            plane = ControlPlane(state / "plane", binaries=find_binaries(build=True))
            stack.callback(plane.stop)
            await asyncio.to_thread(plane.start)
            await asyncio.to_thread(cluster.apply_policies, plane)
        monitor = free_ports(1)[0]
        nats = EmbeddedServer(store_dir=state / "nats", extra_config=f"http: 127.0.0.1:{monitor}")
        await stack.enter_async_context(nats)
        bus = await NatsBus.connect(nats.url, name="bench")
        stack.push_async_callback(bus.drain)
        site = Site(state, nodes, nats, monitor, bus, plane)
        if plane is not None:
            site.kube = await cluster.transport(plane, connections=96)
            stack.push_async_callback(site.kube.close)
        site.prepare()
        stack.callback(site.stop)
        yield site
