"""One NATS server becomes three and one again, while pods are placed: none is lost, and none is placed twice."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.up import apply, node_object
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError
from shared.contracts import queries, subjects
from shared.contracts.base import decode, encode
from shared.contracts.commands import SimAnswer, SimApply
from shared.contracts.queries import StatusAnswer, StatusQuery
from shared.service import Context, Lifecycle, load, running
from tests.support.nats_cluster import cluster_section
from tests.support.waiting import eventually
from tools.control_plane import free_ports

NODES = [{"name": f"gpu-{i}", "model": "NVIDIA-A100", "count": 8, "memory_mib": 40_960} for i in range(16)]
RECOVERS_WITHIN_S = 60.0


def pod(number: int) -> dict[str, Any]:
    limits = {"kerf.dev/gpu-memory": "2Gi", "kerf.dev/slot": "1"}
    tolerations = [{"key": "kerf.dev/managed", "operator": "Exists", "effect": "NoSchedule"}]
    containers = [{"name": "main", "image": "pause", "resources": {"limits": limits}}]
    metadata = {"name": f"p{number}", "namespace": "team"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": "kerf", "containers": containers, "tolerations": tolerations},
    }


class Servers:
    """NATS servers on ports that stay, with a store for each way to run them: streams do not go from one to another."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ports, self.routes = folder, free_ports(3), free_ports(3)
        self.running: list[EmbeddedServer] = []

    @property
    def urls(self) -> str:
        return ",".join(f"nats://127.0.0.1:{port}" for port in self.ports)

    async def become(self, count: int) -> None:
        """As a StatefulSet whose pods are replaced."""
        await asyncio.gather(*(server.stop() for server in self.running))
        self.running = [
            EmbeddedServer(
                port=self.ports[i],
                server_name=f"n{i}",
                store_dir=self.folder / f"{'cluster' if count > 1 else 'alone'}-{i}",
                extra_config=cluster_section(i, self.routes) if count > 1 else "",
            )
            for i in range(count)
        ]
        await asyncio.gather(*(server.start() for server in self.running))


@pytest.mark.timeout(280)
async def test_one_server_becomes_three_and_one_again_while_pods_are_placed(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    await servers.become(1)
    async with contextlib.AsyncExitStack() as made:
        made.push_async_callback(lambda: asyncio.gather(*(server.stop() for server in servers.running)))
        services: dict[str, Context] = {}
        settings = Lifecycle(nats_url=servers.urls, nats_replicas=3)
        for name, config in (
            ("placement", {}),
            ("watcher", {"source": "simulated"}),
            ("node-agent", {"hollow": NODES}),
        ):
            kind = load(name)
            services[name] = await made.enter_async_context(
                running(kind, msgspec.convert(config, kind.config_type), lifecycle=settings)
            )
        bus = await NatsBus.connect(servers.urls)
        made.push_async_callback(bus.close)
        await eventually(lambda: all(ctx.health.ready for ctx in services.values()), within_s=60)
        await apply(bus, [node_object(node) for node in NODES])
        created: set[int] = set()
        stop = asyncio.Event()

        async def create() -> None:
            """Pods come all the time; one whose creation was not answered is created again, or is there."""
            while not stop.is_set():
                number = len(created)
                try:
                    order = SimApply(objects=(msgspec.Raw(msgspec.json.encode(pod(number))),))
                    payload = await bus.request(subjects.SIM_APPLY, encode(order), timeout_s=1.0)
                    answer = decode(payload, SimAnswer)
                    if not answer.refusals or "exists" in str(answer.refusals):
                        created.add(number)
                except BusError:
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0.02)

        async def status() -> StatusAnswer:
            with contextlib.suppress(BusError):
                return decode(await bus.request(queries.STATUS.subject, encode(StatusQuery())), StatusAnswer)
            return StatusAnswer()

        async def more_bound(than: int) -> bool:
            return (await status()).pods_bound > than

        creating = asyncio.create_task(create())
        await eventually(lambda: more_bound(20), within_s=RECOVERS_WITHIN_S)
        for count in (3, 1):
            await servers.become(count)
            bound = (await eventually(status, within_s=RECOVERS_WITHIN_S)).pods_bound
            at_least = max(bound, len(created))
            await eventually(lambda least=at_least: more_bound(least), within_s=RECOVERS_WITHIN_S)
            info = await bus.js.call(f"STREAM.INFO.{subjects.STREAM_LOG}", None, dict)
            assert info["config"]["num_replicas"] == count
        stop.set()
        await creating
        await eventually(lambda: more_bound(len(created) - 1), within_s=RECOVERS_WITHIN_S)
        final = await status()
        assert (final.pods_bound, final.double_bookings) == (len(created), 0)
        assert [ctx.failure.result() for ctx in services.values() if ctx.failure.done()] == []
