"""What the API server itself spends on a pod that is created and bound, with and without what Kerf adds to it.

    python -m bench.api_server [--pods 1000] [--nodes 50] [--rounds 3] [--json]

One client creates and binds pods, 16 in flight, in rounds of these cases, one after another:

- bare: no admission policy of Kerf, nothing watches, no Events
- policies: the admission policies of k8s/
- watch: the policies, and one watch of all pods that is read as the watcher reads it, and so gets each pod twice
- events: the policies, and one Event a pod

The CPU is that of kube-apiserver and of etcd. A rate says how fast the loop was; the client shares the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop

from bench import bind, cluster
from tools.control_plane import ControlPlane, find_binaries

CASES = ("bare", "policies", "watch", "events")
IN_FLIGHT = 16


async def run(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="kerf-bench-") as folder:
        plane = ControlPlane(
            Path(folder) / "plane", binaries=find_binaries(("etcd", "kube-apiserver"), build=True)
        ).start()
        try:
            cluster.apply_policies(plane)
            kube = await cluster.transport(plane)
            await cluster.create_nodes(kube, args.nodes, gpus=bind.GPUS, extended=bind.EXTENDED)
            await _case(plane, "warm", args.pods // 4, args.nodes)  # the first burst of a fresh server is slow
            found: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
            for number in range(args.rounds):
                for case in CASES:
                    await _policies(plane, kube, present=case != "bare")
                    found[case].append(await _case(plane, case, args.pods, args.nodes))
                    sys.stderr.write(f"round {number + 1}, {case}: {found[case][-1]}\n")
            await kube.close()
        finally:
            plane.stop()
    return {
        "pods": args.pods,
        "rounds": args.rounds,
        **{
            case: {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
            for case, rounds in found.items()
        },
    }


async def _case(plane: ControlPlane, case: str, pods: int, nodes: int) -> dict[str, float]:
    kube, binder = await cluster.transport(plane), await cluster.transport(plane, watcher=True)

    async def one(i: int) -> None:
        meta = await bind.create_and_bind(kube, binder, f"{case}-{i}", f"node-{i % nodes}")
        if case == "events":
            await cluster.must(kube, "POST", EVENTS, _event(meta))

    async with _watching(kube) if case == "watch" else contextlib.nullcontext():
        before, began = plane.cpu_seconds(), time.perf_counter()
        await cluster.in_flight(pods, IN_FLIGHT, one)
        seconds, after = time.perf_counter() - began, plane.cpu_seconds()
    await cluster.remove_pods(kube)
    await kube.close()
    await binder.close()
    cpu = {f"{name}_us_per_pod": round((after[name] - before[name]) * 1e6 / pods) for name in after}
    return {"pods_per_s": round(pods / seconds, 1), **cpu}


EVENTS = f"/apis/events.k8s.io/v1/namespaces/{cluster.NAMESPACE}/events"


def _event(meta: dict[str, Any]) -> dict[str, Any]:
    """As the watcher writes it (shared/kube/event_writes.py)."""
    return {
        "metadata": {"name": f"{meta['name']}.{time.time_ns():x}"},
        "eventTime": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime()),
        "reportingController": "kerf.dev/bench",
        "reportingInstance": "bench",
        "action": "Binding",
        "reason": "Scheduled",
        "type": "Normal",
        "note": f"Successfully assigned {cluster.NAMESPACE}/{meta['name']}",
        "regarding": {
            "kind": "Pod",
            "namespace": cluster.NAMESPACE,
            "name": meta["name"],
            "uid": meta["uid"],
            "apiVersion": "v1",
        },
    }


@contextlib.asynccontextmanager
async def _watching(kube: Any) -> AsyncIterator[None]:
    """One watch of all pods, read to the end of the block."""

    async def read(opened: asyncio.Event) -> None:
        async with kube.stream("/api/v1/pods?watch=true&allowWatchBookmarks=true", read_timeout_s=600.0) as (_, chunks):
            opened.set()
            async for _ in chunks:
                pass

    opened = asyncio.Event()
    task = asyncio.create_task(read(opened))
    await opened.wait()
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _policies(plane: ControlPlane, kube: Any, *, present: bool) -> None:
    """Applies them, or takes them away, and waits until the server acts so."""
    if present:
        cluster.apply_policies(plane)
    else:
        cluster.remove_policies(plane)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        # While some of them are there, the pod may be refused.
        answer = await kube.request("POST", bind.PODS, bind.half_gpu("probe"), timeout_s=30.0)
        await cluster.remove_pods(kube)
        if answer.status == 201 and (b'"schedulerName":"kerf"' in answer.body) == present:
            return
        await asyncio.sleep(0.2)
    raise RuntimeError(f"the policies are {'not in force' if present else 'still in force'} after 60 s")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.api_server", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = uvloop.run(run(args))
    sys.stdout.write(json.dumps(result) + "\n" if args.json else "".join(f"{k}: {v}\n" for k, v in result.items()))


if __name__ == "__main__":
    main()
