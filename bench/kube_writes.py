"""What Bindings and watch events cost our process, by HTTP client: CPU microseconds against a real API server.

    python -m bench.kube_writes [--pods 1500] [--in-flight 16] [--rounds 2]

Starts a control plane of its own (tools/build.sh builds its binaries). Prints JSON, one line a run: the Bindings of
`--pods` pods; and as many watch events, while another process changes these pods (bytes alone, without decoding). First
the time and memory that importing the clients and kubernetes_asyncio's configuration takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import uvloop

from shared.contracts.commands import Bind
from shared.kube.access import load_access
from shared.kube.aiohttp_transport import AiohttpTransport
from shared.kube.client import transport_for
from shared.kube.transport import MERGE_PATCH, Transport
from shared.kube.writes import Writes
from tools.control_plane import ControlPlane

PODS = "/api/v1/namespaces/default/pods"
POD = {
    "spec": {
        "schedulerName": "kerf",
        "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "100m"}}}],
    }
}
GRANT = json.dumps(
    {
        "version": 1,
        "grant_id": "g" * 26,
        "term": 1,
        "sequence": 1,
        "containers": {
            "c": {
                "strategy": "exclusive",
                "gpus": [
                    {
                        "node": "n",
                        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
                        "memory_mib": 81920,
                        "compute_milli": 1000,
                    }
                ],
            }
        },
    }
)


async def bind_all(transport: Transport, prefix: str, pods: int, in_flight: int) -> dict[str, float]:
    """Creates pods, then measures binding them alone."""
    slots = asyncio.Semaphore(in_flight)
    writes = Writes(transport, reporter="bench")

    async def create(i: int) -> Bind:
        async with slots:
            body = msgspec.json.encode({**POD, "metadata": {"name": f"{prefix}-{i}", "labels": {"bench": prefix}}})
            answer = await transport.request("POST", PODS, body)
        assert answer.status == 201, answer
        meta = msgspec.json.decode(answer.body)["metadata"]
        return Bind(
            uid=meta["uid"],
            namespace="default",
            name=meta["name"],
            resource_version=meta["resourceVersion"],
            node="n",
            grant=GRANT,
        )

    orders = await asyncio.gather(*(create(i) for i in range(pods)))
    took: list[float] = []

    async def bind(order: Bind) -> None:
        async with slots:
            began = time.perf_counter()
            result = await writes.bindings.bind(order)
            took.append(time.perf_counter() - began)
        assert result.outcome == "done", result

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(bind(order) for order in orders))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {
        "cpu_us_per_bind": round(cpu / pods * 1e6, 1),
        "binds_per_s": round(pods / wall, 1),
        "p50_ms": round(statistics.median(took) * 1e3, 2),
    }


async def watch_events(transport: Transport, kubeconfig: Path, prefix: str, pods: int) -> dict[str, float]:
    """Measures reading one watch event for each of these pods, which another process changes."""
    listed = (await transport.request("GET", f"{PODS}?limit=1")).body
    version = msgspec.json.decode(listed)["metadata"]["resourceVersion"]
    path = f"{PODS}?watch=1&labelSelector=bench%3D{prefix}&resourceVersion={version}"
    async with transport.stream(path, read_timeout_s=60) as (response, chunks):
        assert response.status == 200, response
        arguments = ("--change", prefix, "--kubeconfig", str(kubeconfig), "--pods", str(pods))
        changer = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.kube_writes", *arguments)
        events = size = reads = 0
        cpu = wall = 0.0
        async for chunk in chunks:
            if not reads:
                cpu, wall = time.process_time(), time.perf_counter()
            events, size, reads = events + chunk.count(b"\n"), size + len(chunk), reads + 1
            if events >= pods:
                break
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    await changer.wait()
    return {
        "cpu_us_per_event": round(cpu / events * 1e6, 1),
        "events_per_s": round(events / wall, 1),
        "events_per_read": round(events / reads, 2),
        "bytes_per_event": round(size / events),
    }


async def change(prefix: str, kubeconfig: str, pods: int) -> None:
    """Changes each of these pods once, 16 at a time."""
    transport = transport_for(await load_access(kubeconfig))
    slots = asyncio.Semaphore(16)

    async def one(number: int) -> None:
        async with slots:
            body = b'{"metadata":{"annotations":{"changed":"1"}}}'
            answer = await transport.request("PATCH", f"{PODS}/{prefix}-{number}", body, content_type=MERGE_PATCH)
        assert answer.status == 200, answer

    await asyncio.gather(*(one(number) for number in range(pods)))
    await transport.close()


def import_cost(modules: str) -> dict[str, float]:
    """Seconds and MiB that a fresh process needs to import these modules, beyond those of the interpreter."""
    program = (
        "import time\n"
        "def mib(): return int(open('/proc/self/statm').read().split()[1]) * 4096 / 2**20\n"
        f"before, began = mib(), time.perf_counter()\nimport {modules}\n"
        "print(round(time.perf_counter() - began, 2), round(mib() - before, 1))"
    )
    runs = [
        [float(figure) for figure in subprocess.check_output([sys.executable, "-c", program]).split()] for _ in range(3)
    ]
    return {"seconds": statistics.median(run[0] for run in runs), "mib": statistics.median(run[1] for run in runs)}


async def measure(client: str, kubeconfig: Path, name: str, pods: int, in_flight: int) -> dict[str, float]:
    access = await load_access(str(kubeconfig))
    transport: Transport = AiohttpTransport(access) if client == "aiohttp" else transport_for(access)
    try:
        bound = await bind_all(transport, name, pods, in_flight)
        return {**bound, **await watch_events(transport, kubeconfig, name, pods)}
    finally:
        await transport.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=1500)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--change", help=argparse.SUPPRESS)
    parser.add_argument("--kubeconfig", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.change:
        asyncio.run(change(arguments.change, arguments.kubeconfig, arguments.pods))
        return
    for modules in ("shared.kube.http1", "shared.kube.aiohttp_transport", "kubernetes_asyncio.config"):
        print(json.dumps({"import": modules, **import_cost(modules)}), flush=True)
    with tempfile.TemporaryDirectory(prefix="kerf-bench-") as state:
        plane = ControlPlane(Path(state)).start()
        try:
            kubeconfig = plane.kubeconfig()
            for number in range(arguments.rounds):
                for client in ("aiohttp", "http1"):
                    for loop, run in (("asyncio", asyncio.run), ("uvloop", uvloop.run)):
                        name = f"{client}-{loop}-{number}".lower()
                        figures = run(measure(client, kubeconfig, name, arguments.pods, arguments.in_flight))
                        print(
                            json.dumps(
                                {
                                    "client": client,
                                    "loop": loop,
                                    "round": number,
                                    "in_flight": arguments.in_flight,
                                    **figures,
                                }
                            ),
                            flush=True,
                        )
        finally:
            plane.stop()


if __name__ == "__main__":
    main()
