"""A complete agent beside a fake kubelet: over real gRPC, real NATS and the fake NVML."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from services.node_agent.config import Config
from services.node_agent.service import NodeAgent
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.node_commands import Accepted, NodeGrant
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.service import Context, running
from tests.support.fake_kubelet import FakePod
from tests.support.first_sync import first_sync, is_new


@contextlib.asynccontextmanager
async def agent(nats: EmbeddedServer, host: Path, **changes: Any) -> AsyncIterator[Context]:
    """Where it has no checkpoint it has had its first sync."""
    contexts: list[Context] = []

    class Known(NodeAgent):
        async def start(self, ctx: Context) -> None:
            await super().start(ctx)
            contexts.append(ctx)

    settings = {
        "node": "n1",
        "checkpoint_file": str(host / "state" / "agent.json"),
        "boot_id_file": str(host / "boot_id"),
        "kubelet_dir": str(host / "kubelet"),
        "cdi_dir": str(host / "cdi"),
        "cgroup_dir": str(host / "cgroup"),
        "host_root": str(host),
        "slots": 64,
        "run_dir": str(host / "run"),
        "library_dir": str(host / "lib"),
    }
    config = Config(**(settings | changes))
    begins = is_new(config.checkpoint_file)
    async with running(Known, config, bus_url=nats.url):
        if begins:
            await first_sync(nats.url, config.node)
        yield contexts[0]


def uid(name: str) -> str:
    return str(uuid5(NAMESPACE_DNS, name))


def pod(name: str, **more: Any) -> FakePod:
    return FakePod(uid=uid(name), namespace="team", name=name, **more)


async def grant(
    bus: NatsBus, name: str, *, nics: tuple[str, ...] = (), init_share: str = "", **memory_by_container: int
) -> Accepted:
    containers = {
        container: ContainerGrant(
            strategy="advisory",
            gpus=(GpuShare(node="n1", uuid=f"GPU-{number % 2}", memory_mib=memory, compute_milli=0),),
        )
        for number, (container, memory) in enumerate((memory_by_container or {"main": 20}).items())
    }
    order = NodeGrant(
        term=1,
        uid=uid(name),
        namespace="team",
        name=name,
        grant=Grant(grant_id=f"g-{name}", term=1, containers=containers, nics=nics, init_share=init_share),
    )
    return decode(await bus.request(subjects.node_command("n1", "grant"), encode(order)), Accepted)


def environment(host: Path, cdi_name: str) -> dict[str, str]:
    """Of the one spec that has this device; empty if there is none."""
    return dict(line.split("=", 1) for line in edits(host, cdi_name).get("env", ()))


def edits(host: Path, cdi_name: str) -> dict[str, Any]:
    """The edits of the one spec that has this device; empty if there is none."""
    found: list[dict[str, Any]] = []
    for path in (host / "cdi").glob("*.json"):
        spec = json.loads(path.read_text())
        for device in spec["devices"]:
            if f"{spec['kind']}={device['name']}" == cdi_name:
                found.append(device["containerEdits"])
    assert len(found) <= 1
    return found[0] if found else {}
