"""Three NATS servers as a cluster, on ports that stay, each with a store of its own that outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError
from shared.bus.provision import provision
from tests.support.waiting import eventually
from tools.control_plane import free_ports

ROOT = Path(__file__).resolve().parents[2]
ELECTED_WITHIN_S = 40.0


def cluster_section(index: int, routes: Sequence[int], more: str = "no_advertise: true") -> str:
    """The section of a server's configuration that joins it to the servers that listen for routes on these ports."""
    others = json.dumps([f"nats-route://127.0.0.1:{port}" for port in routes])
    return f"cluster {{ name: kerf, listen: '127.0.0.1:{routes[index]}', routes: {others}, {more} }}"


def installed_server(binary: Path) -> dict[str, str]:
    """Variables with which an EmbeddedServer is the server of an installation: the image's own (`tools/program.sh
    nats-server`), with the time-outs of elections that the chart sets."""
    values = yaml.safe_load((ROOT / "k8s/chart/values.yaml").read_text())["nats"]["elections"]
    return {
        "KERF_NATS_SERVER": str(binary),
        "KERF_NATS_HEARTBEAT_MS": str(values["heartbeatMs"]),
        "KERF_NATS_ELECTION_MIN_MS": str(values["minMs"]),
        "KERF_NATS_ELECTION_MAX_MS": str(values["maxMs"]),
    }


def monitoring(port: int) -> str:
    """The setting by which a server tells on this port how it is, as in an installation."""
    return f"http: 127.0.0.1:{port}"


def _installed(kind: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((ROOT / "k8s/30-nats.yaml").read_text())
    found: dict[str, Any] = next(document for document in documents if document["kind"] == kind)
    return found


def max_file_store() -> str:
    """That of an installation's servers."""
    found = re.search(r"^  max_file_store: (\S+)$", _installed("ConfigMap")["data"]["nats.conf"], re.MULTILINE)
    assert found, "the limit is what is free when a server starts"
    return found[1]


def is_alive(monitor: int) -> bool:
    """What the liveness probe of an installation says of the server that has this port for its monitoring."""
    servers = _installed("StatefulSet")
    probe = servers["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["exec"]["command"]
    program = probe[-1].replace("8222", str(monitor))
    assert probe[0] == "python"
    assert program != probe[-1], "the probe asks another port"
    asked = [sys.executable, *probe[1:-1], program]
    return subprocess.run(asked, capture_output=True, check=False, timeout=30).returncode == 0


async def provision_cluster(bus: NatsBus, *, replicas: int) -> None:
    """Creates the streams. Servers that have just started elect a leader first, and refuse until then."""

    async def provisioned() -> bool:
        with contextlib.suppress(BusError):
            await provision(bus, replicas=replicas)
            return True
        return False

    await eventually(provisioned, within_s=ELECTED_WITHIN_S)


class NatsCluster:
    """Use it as an async context manager. `servers[i]` is named `n<i>`."""

    def __init__(self, folder: Path, *, count: int = 3) -> None:
        ports, routes, self.monitors = free_ports(count), free_ports(count), free_ports(count)
        self.servers = [
            EmbeddedServer(
                port=ports[i],
                server_name=f"n{i}",
                store_dir=folder / f"nats-{i}",
                extra_config=f"{monitoring(self.monitors[i])}\n{cluster_section(i, routes)}",
                max_file_store=max_file_store(),
            )
            for i in range(count)
        ]
        self.url = ",".join(f"nats://127.0.0.1:{port}" for port in ports)

    async def __aenter__(self) -> NatsCluster:
        await asyncio.gather(*(server.start() for server in self.servers))
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(server.stop() for server in self.servers))

    async def leader_of(self, bus: NatsBus, stream: str) -> EmbeddedServer:
        """The server that leads the stream. Raises BusError while none does."""
        cluster = (await bus.js.stream_info(stream)).cluster
        assert cluster is not None, f"stream {stream} is not on servers of a cluster"
        if not cluster.leader:
            raise BusError(f"no server leads stream {stream}")
        return self.servers[int(cluster.leader.removeprefix("n"))]

    async def lagging(self, bus: NatsBus) -> list[str]:
        """The streams that do not have a current replica on every server."""
        names = (await bus.js.call("STREAM.NAMES", {}, dict))["streams"] or []
        found = []
        for name in names:
            cluster = (await bus.js.stream_info(name)).cluster
            replicas = () if cluster is None else cluster.replicas
            whole = len(replicas) == len(self.servers) - 1 and all(r.current and not r.offline for r in replicas)
            if cluster is None or not cluster.leader or not whole:
                found.append(name)
        return found
