"""What simulated nodes cost: `python -m bench.agents [--nodes 1213] [--pods 10000] [--json]`.

One agent process for all nodes over an embedded NATS server; CPU is that process's own, read from /proc, wall time is
the whole's. Each pod is half a GPU, granted, then released and booked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from services.simulator.hollow import inventory_of
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.bus.provision import provision
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.node_commands import NodeGrant, NodeRelease, NodeSync, ReleasesSeen
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.hollow_node import HollowNode
from shared.telemetry.logs import configure_logging

ANSWERS = subjects.ack("bench", "grant", "*")
MEMORY_MIB = 81_920


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def grant(number: int, node: HollowNode, uuid: str) -> NodeGrant:
    share = GpuShare(node=node.name, uuid=uuid, memory_mib=MEMORY_MIB // 2, compute_milli=0)
    made = Grant(grant_id=f"g-{number}", term=1, containers={"c": ContainerGrant(strategy="advisory", gpus=(share,))})
    return NodeGrant(term=1, uid=f"u-{number}", namespace="bench", name=f"p-{number}", grant=made)


async def measure(count: int, pods: int) -> dict[str, float]:
    nodes = [HollowNode(name=f"node-{i}", memory_mib=MEMORY_MIB) for i in range(count)]
    if pods > 16 * count:
        raise SystemExit(f"{count} nodes have room for {16 * count} pods")
    uuids = {node.name: [gpu.uuid for gpu in inventory_of(node, "").gpus] for node in nodes}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "agents.json"
        config.write_text(
            json.dumps(
                {
                    "hollow": [{"name": n.name, "memory_mib": n.memory_mib} for n in nodes],
                    "lifecycle": {"log_level": "error"},
                }
            )
        )
        async with EmbeddedServer() as server, await NatsBus.connect(server.url) as bus:
            await provision(bus)
            begun = time.perf_counter()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.node_agent",
                "--config",
                str(config),
                env=os.environ | {"KERF_NATS_URL": server.url},
            )
            try:
                last = bus.kv(subjects.KV_NODES)
                while not all([(await last.get(subjects.token(node.name))).value for node in (nodes[0], nodes[-1])]):  # noqa: ASYNC110 - it is another process
                    await asyncio.sleep(0.05)
                found = {"up_s": time.perf_counter() - begun, "rss_mib": _rss_mib(process.pid)}
                return found | await _pods(bus, process.pid, nodes, uuids, pods)
            finally:
                process.terminate()
                await process.wait()


def _rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def _pods(
    bus: NatsBus, pid: int, nodes: list[HollowNode], uuids: dict[str, list[str]], pods: int
) -> dict[str, float]:
    answers, done = 0, asyncio.Event()

    async def answered(_: Incoming) -> None:
        nonlocal answers
        answers += 1
        if answers % pods == 0:
            done.set()

    for node in nodes:  # without its first sync an agent takes no order
        await bus.request(subjects.node_command(node.name, "sync"), encode(NodeSync(term=1, node=node.name)))
    await bus.subscribe(ANSWERS, answered)
    found: dict[str, Any] = {}
    for what in ("grant", "release"):
        done.clear()
        before, begun = cpu_s(pid), time.perf_counter()
        for i in range(pods):
            node = nodes[i % len(nodes)]
            subject = subjects.node_command(node.name, what)
            if what == "grant":
                uuid = uuids[node.name][i // len(nodes) % 8]
                await bus.publish(
                    subject, encode(grant(i, node, uuid)), reply=subjects.ack("bench", "grant", node.name)
                )
            else:
                await bus.publish(
                    subject,
                    encode(NodeRelease(term=1, uid=f"u-{i}", grant_id=f"g-{i}")),
                    reply=subjects.ack("bench", "grant", node.name),
                )
                await bus.publish(subjects.node_command(node.name, "ack"), encode(ReleasesSeen(grant_ids=(f"g-{i}",))))
        await done.wait()
        wall = time.perf_counter() - begun
        await asyncio.sleep(0.5)  # its events are still on their way to the stream
        found |= {f"{what}_cpu_us_a_pod": (cpu_s(pid) - before) / pods * 1e6, f"{what}_pods_a_second": pods / wall}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1213)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    configure_logging()  # on stderr: stdout is the result's alone
    found = {key: round(value, 1) for key, value in asyncio.run(measure(arguments.nodes, arguments.pods)).items()}
    print(json.dumps(found) if arguments.json else "\n".join(f"{key:24} {value:10.1f}" for key, value in found.items()))


if __name__ == "__main__":
    main()
