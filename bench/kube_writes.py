"""What a Binding costs our process, by client: CPU microseconds and rate against a real API server.

    python -m bench.kube_writes [--pods 1500] [--in-flight 16] [--state DIR of a running control plane's pki]

Starts a control plane of its own (tools/build.sh builds its binaries). Prints JSON, one line a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

import msgspec
import uvloop

from shared.contracts.commands import Bind
from shared.kube.access import load_access
from shared.kube.aiohttp_transport import AiohttpTransport
from shared.kube.client import transport_for
from shared.kube.transport import Transport
from shared.kube.writes import Writes
from tools.control_plane import ControlPlane

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
            body = msgspec.json.encode({**POD, "metadata": {"name": f"{prefix}-{i}"}})
            answer = await transport.request("POST", "/api/v1/namespaces/default/pods", body)
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
            result = await writes.bind(order)
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


async def measure(client: str, kubeconfig: Path, name: str, pods: int, in_flight: int) -> dict[str, float]:
    access = await load_access(str(kubeconfig))
    transport: Transport = AiohttpTransport(access) if client == "aiohttp" else transport_for(access)
    try:
        return await bind_all(transport, name, pods, in_flight)
    finally:
        await transport.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1500)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kerf-bench-") as state:
        plane = ControlPlane(Path(state)).start()
        try:
            kubeconfig = plane.kubeconfig()
            for number in range(arguments.rounds):
                for client in ("aiohttp", "http1"):
                    for loop, run in (("asyncio", asyncio.run), ("uvloop", uvloop.run)):
                        name = f"{client}-{loop}-{number}".lower()
                        figures = run(measure(client, kubeconfig, name, arguments.pods, arguments.in_flight))  # type: ignore[operator]
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
