"""What the watcher costs a pod: CPU of its process for two watch events in, facts out, a Binding, against a real API
server.

    python -m bench.kube_watcher [--pods 2000] [--batch 32]

Starts a control plane, a NATS server and the watcher as a process of its own. This process plays all other parts: it
creates pods, reads the feed and orders the binds. Prints one line of JSON.
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

import msgspec

from bench.kube_writes import GRANT, POD
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.commands import Answers, Bind, BindBatch
from shared.contracts.facts import FeedBatch, Put
from shared.kube.client import connect
from shared.model.objects import Pod
from tools.control_plane import ControlPlane


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Driver:
    """Binds what the feed shows as pending, in batches."""

    def __init__(self, bus: NatsBus, total: int, batch: int) -> None:
        self.bus, self.total, self.batch = bus, total, batch
        self.pending: list[Bind] = []
        self.seen: set[str] = set()
        self.bound: set[str] = set()
        self.refused = 0
        self.done = asyncio.Event()
        self.node = asyncio.Event()

    async def heard(self, incoming: Incoming) -> None:
        for fact in decode(incoming.payload, FeedBatch).facts:
            pod = fact.object
            if not isinstance(fact, Put) or not isinstance(pod, Pod):
                self.node.set()
                continue
            meta = pod.metadata
            if pod.spec.node_name:
                self.bound.add(meta.uid)
            elif meta.uid not in self.seen:
                self.seen.add(meta.uid)
                self.pending.append(
                    Bind(
                        uid=meta.uid,
                        namespace=meta.namespace,
                        name=meta.name,
                        resource_version=meta.resource_version,
                        node="n",
                        grant=GRANT,
                    )
                )
        if len(self.bound) >= self.total:
            self.done.set()

    async def run(self) -> None:
        """Two batches in flight, as placement keeps them."""
        await asyncio.gather(self._orders(), self._orders())

    async def _orders(self) -> None:
        while not self.done.is_set():
            if not self.pending:
                await asyncio.sleep(0.002)
                continue
            take, self.pending = self.pending[: self.batch], self.pending[self.batch :]
            payload = encode(BindBatch(term=1, sequence=1, binds=tuple(take)))
            answers = decode(await self.bus.request(subjects.CMD_BIND, payload, timeout_s=30), Answers)
            self.refused += len(answers.answers)


async def bench(plane: ControlPlane, pods: int, batch: int) -> dict[str, float]:
    async with EmbeddedServer() as nats:
        env = {
            **os.environ,
            "KERF_NATS_URL": nats.url,
            "KERF_WATCHER_KUBECONFIG": str(plane.kubeconfig()),
            "KERF_LOG_LEVEL": "warning",
        }
        watcher = await asyncio.create_subprocess_exec(sys.executable, "-m", "services.watcher", env=env)
        bus = await NatsBus.connect(nats.url)
        client = await connect(str(plane.kubeconfig()))
        try:
            driver = Driver(bus, pods, batch)
            await bus.subscribe(subjects.FEED_ALL, driver.heard)
            await client.request("POST", "/api/v1/nodes", b'{"metadata":{"name":"n"}}')
            await asyncio.wait_for(driver.node.wait(), 60)
            slots = asyncio.Semaphore(16)

            async def create(number: int) -> None:
                async with slots:
                    body = msgspec.json.encode({**POD, "metadata": {"name": f"p-{number}"}})
                    assert (await client.request("POST", "/api/v1/namespaces/default/pods", body)).status == 201

            before, began = cpu_s(watcher.pid), time.perf_counter()
            driving = asyncio.create_task(driver.run())
            await asyncio.gather(*(create(i) for i in range(pods)))
            await asyncio.wait_for(driver.done.wait(), 300)
            wall, cpu = time.perf_counter() - began, cpu_s(watcher.pid) - before
            driving.cancel()
            return {
                "pods": pods,
                "watcher_cpu_us_per_pod": round(cpu / pods * 1e6, 1),
                "pods_per_s": round(pods / wall, 1),
                "refused": driver.refused,
            }
        finally:
            watcher.terminate()
            await watcher.wait()
            await client.close()
            await bus.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kerf-bench-") as state:
        plane = ControlPlane(Path(state)).start()
        try:
            print(json.dumps(asyncio.run(bench(plane, arguments.pods, arguments.batch))))
        finally:
            plane.stop()


if __name__ == "__main__":
    main()
