"""Created to bound: a loop that does nothing else, kube-scheduler, and Kerf, on one machine in one run.

    python -m bench.bind --pods 2000 --nodes 500 [--rounds 5] [--python /usr/bin/python3] [--json] [--profile placement]

The ceiling: canonical pods created and bound by one client under the same admission policies, 16 and 64 in flight, the
higher counts. kube-scheduler: client limits lifted (2,000 a second, bursts of 4,000), as many pods with one extended
resource. Kerf: its services as processes of their own with the settings they have by default, tracing and Events
included; the CPU is that of all of them and of NATS. Everything shares the machine's cores, the creating client too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from bench import cluster
from bench.booked import Booked
from bench.processes import Fleet, fleet
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, Incoming
from shared.contracts import queries, subjects
from shared.contracts.base import decode, encode
from shared.contracts.envelope import unwrap
from shared.contracts.events import PodBound
from shared.contracts.queries import StatusAnswer, StatusQuery
from tools.control_plane import ControlPlane, find_binaries

GPUS, MEMORY_MIB = 8, 81_920
EXTENDED = "example.com/device"
PODS = f"/api/v1/namespaces/{cluster.NAMESPACE}/pods"
IN_FLIGHT = 64


def half_gpu(name: str) -> bytes:
    limits = {"kerf.dev/gpu-memory": "40Gi", "kerf.dev/gpu-compute": "50"}
    return msgspec.json.encode(
        {
            "metadata": {"name": name},
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "image": "i",
                        "resources": {"limits": limits, "requests": {"cpu": "1", "memory": "1Gi", **limits}},
                    }
                ]
            },
        }
    )


def one_device(name: str) -> bytes:
    limits = {EXTENDED: "1"}
    return msgspec.json.encode(
        {
            "metadata": {"name": name},
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "image": "i",
                        "resources": {"limits": limits, "requests": {"cpu": "1", "memory": "1Gi"}},
                    }
                ]
            },
        }
    )


async def create(kube: Any, body: bytes) -> dict[str, Any]:
    answer = await kube.request("POST", PODS, body, timeout_s=30.0)
    if answer.status != 201:
        raise RuntimeError(f"create: {answer.status} {answer.body[:300]!r}")
    made: dict[str, Any] = msgspec.json.decode(answer.body)
    return made


async def create_and_bind(kube: Any, binder: Any, name: str, node: str) -> dict[str, Any]:
    """A pod of half a GPU, bound with a grant as Kerf's are; returns its metadata."""
    meta: dict[str, Any] = (await create(kube, half_gpu(name)))["metadata"]
    binding = {
        "metadata": {
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "annotations": {"kerf.dev/grant": _GRANT},
        },
        "target": {"kind": "Node", "name": node},
    }
    await cluster.must(binder, "POST", f"{PODS}/{meta['name']}/binding", binding)
    return meta


_GRANT = (
    '{"version":1,"grant_id":"193a5c2f0b1-1","term":1,"sequence":1,"containers":{"c":{"strategy":"advisory",'
    '"gpus":[{"node":"node-0","uuid":"GPU-00000000-0000-0000-0000-000000000000","memory_mib":40960,'
    '"compute_milli":500}]}}}'
)


async def ceiling(plane: ControlPlane, pods: int, nodes: int, limit: int) -> float:
    """Pods per second of create and bind in a loop."""
    kube, binder = await cluster.transport(plane), await cluster.transport(plane, watcher=True)

    async def one(i: int) -> None:
        await create_and_bind(kube, binder, f"ceiling-{limit}-{i}", f"node-{i % nodes}")

    before, mine, began = (
        plane.cpu_seconds() | dict(zip(("busy", "idle"), machine(), strict=True)),
        time.process_time(),
        time.perf_counter(),
    )
    await cluster.in_flight(pods, limit, one)
    rate = pods / (time.perf_counter() - began)
    _say_cpu(f"ceiling, {limit} in flight", plane, before, mine, pods)
    await cluster.remove_pods(kube)
    await kube.close()
    await binder.close()
    return round(rate, 1)


def machine() -> tuple[float, float]:
    """Seconds that all cores together were busy and idle so far (proc(5))."""
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    tick = os.sysconf("SC_CLK_TCK")
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / tick, idle / tick


def _say_cpu(phase: str, plane: ControlPlane, before: dict[str, float], mine: float, pods: int) -> None:
    """Where the machine's time goes in a phase besides Kerf's own processes. A machine that others use shows in
    `busy`."""
    after = plane.cpu_seconds()
    busy, idle = machine()
    busy, idle = busy - before.pop("busy"), idle - before.pop("idle")
    costs = {name: round((after[name] - before.get(name, 0.0)) * 1e6 / pods) for name in after} | {
        "this client": round((time.process_time() - mine) * 1e6 / pods)
    }
    costs |= {"machine busy": round(busy * 1e6 / pods), "machine idle": round(idle * 1e6 / pods)}
    sys.stderr.write(f"{phase}: CPU us a pod {costs}\n")


async def kube_scheduler(plane: ControlPlane, pods: int) -> float:
    kube = await cluster.transport(plane)
    plane._start_scheduler()
    await create(kube, one_device("warm"))
    await _until_bound(kube, 1)
    began = time.perf_counter()
    await cluster.in_flight(pods, IN_FLIGHT, lambda i: create(kube, one_device(f"device-{i}")))
    await _until_bound(kube, pods + 1)
    rate = pods / (time.perf_counter() - began)
    process = plane.processes.pop("kube-scheduler")
    process.kill()
    process.wait()
    await cluster.remove_pods(kube)
    await kube.close()
    return round(rate, 1)


async def _until_bound(kube: Any, count: int) -> None:
    """Asks seldom enough not to matter: a count of those without a node costs the server an index look-up."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        answer = await kube.request("GET", f"{PODS}?fieldSelector=spec.nodeName%3D&limit=1", timeout_s=30.0)
        if not msgspec.json.decode(answer.body)["items"]:
            return
        await asyncio.sleep(0.05)
    raise RuntimeError(f"not all of {count} pods were bound within 300 s")


class Watched:
    """When each pod was created and when the public stream said it was bound."""

    def __init__(self) -> None:
        self.created: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        self.all = asyncio.Event()
        self.wanted = 0

    async def heard(self, incoming: Incoming) -> None:
        _, event = unwrap(incoming.payload)
        if isinstance(event, PodBound):
            self.bound.setdefault(event.name, time.perf_counter())
            if len(self.bound) >= self.wanted:
                self.all.set()

    async def until(self, count: int, within_s: float = 60.0) -> None:
        self.wanted = count
        if len(self.bound) < count:
            self.all.clear()
            await asyncio.wait_for(self.all.wait(), within_s)


async def kerf(plane: ControlPlane, args: argparse.Namespace, state: Path) -> dict[str, Any]:
    kube = await cluster.transport(plane)
    pods, nodes = args.pods, args.nodes
    async with fleet(state, args.python) as made:
        hollow = state / "hollow.json"
        hollow.write_text(
            json.dumps(
                [
                    {
                        "name": f"node-{i}",
                        "model": "NVIDIA-H100",
                        "count": GPUS,
                        "memory_mib": MEMORY_MIB,
                        "nvlinks": 18,
                    }
                    for i in range(nodes)
                ]
            )
        )
        made.start("placement", {})
        made.start("watcher", {"kubeconfig": str(plane.service_account("kerf-system", "kerf-watcher"))})
        made.start("admission", {"host": "127.0.0.1", "port": 0})
        made.start("node_agent", {"hollow_file": str(hollow)})
        made.start("metrics", {})
        bus = await NatsBus.connect(made.nats.url, name="bench")
        watched = Watched()
        await bus.subscribe(f"{subjects.VERSION}.event.pod.bound.ns.*", watched.heard)
        await _ready(made, bus, nodes)
        await _labelled(kube, nodes)
        await cluster.in_flight(200, 16, lambda i: create(kube, half_gpu(f"warm-{i}")))
        try:
            await watched.until(200)
        except TimeoutError:
            raise RuntimeError(f"the first 200 pods are not bound, {len(watched.bound)} are: {made.logs()}") from None
        sampler = _profile(made, args.profile, state) if args.profile else None
        before, began = made.cpu(), time.perf_counter()
        plane_before, mine = (
            plane.cpu_seconds() | dict(zip(("busy", "idle"), machine(), strict=True)),
            time.process_time(),
        )

        async def one(i: int) -> None:
            name = f"kerf-{i}"
            await create(kube, half_gpu(name))
            watched.created[name] = time.perf_counter()

        await cluster.in_flight(pods, IN_FLIGHT, one)
        created_s = time.perf_counter() - began
        await watched.until(200 + pods)
        seconds, after = time.perf_counter() - began, made.cpu()
        _say_cpu("Kerf", plane, plane_before, mine, pods)
        made.check()
        if sampler is not None:
            await asyncio.to_thread(sampler.wait, 60)
        status = decode(await bus.request(queries.STATUS.subject, encode(StatusQuery()), timeout_s=10), StatusAnswer)
        rss = made.rss()
        await bus.drain()
    found = await cluster.pods(kube)
    latencies = sorted((watched.bound[name] - at) * 1000 for name, at in watched.created.items())
    cpu = {name: round((after[name] - before[name]) * 1e6 / pods) for name in after}
    scheduled = await _scheduled_events(kube, {pod["metadata"]["uid"] for pod in found})
    await cluster.remove_pods(kube)
    await kube.close()
    return {
        "kerf_pods_per_s": round(pods / seconds, 1),
        "kerf_created_per_s": round(pods / created_s, 1),
        "kerf_cpu_us_per_pod": sum(cpu.values()),
        "kerf_cpu_us_per_pod_by_process": cpu,
        "rss_mb": rss,
        "latency_ms": {
            "p50": round(latencies[len(latencies) // 2], 1),
            "p99": round(latencies[len(latencies) * 99 // 100], 1),
        },
        "double_bookings": double_bookings(found),
        "bound": sum(1 for p in found if p["spec"].get("nodeName")),
        "double_bookings_in_book": status.double_bookings,
        "decide_us_p50": round(status.decide_us_p50, 1),
        "decide_us_p99": round(status.decide_us_p99, 1),
        "scheduled_events": scheduled,
    }


async def _scheduled_events(kube: Any, uids: set[str]) -> int:
    """Of these pods: those of earlier rounds are still there."""
    events = await kube.request("GET", f"/apis/events.k8s.io/v1/namespaces/{cluster.NAMESPACE}/events", timeout_s=60)
    found = (e for e in msgspec.json.decode(events.body)["items"] if e.get("reason") == "Scheduled")
    return sum(1 for e in found if e["regarding"].get("uid") in uids)


async def _ready(made: Fleet, bus: NatsBus, nodes: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        made.check()
        try:
            status = decode(await bus.request(queries.STATUS.subject, encode(StatusQuery()), timeout_s=2), StatusAnswer)
        except BusError:
            await asyncio.sleep(0.1)  # no leader yet
            continue
        if status.synced_nodes == nodes == status.nodes:
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"not ready within 120 s: {status}")


async def _labelled(kube: Any, nodes: int) -> None:
    """A cluster that has just met Kerf gets its nodes labelled first; that is no cost of a pod."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        answer = await kube.request("GET", "/api/v1/nodes?labelSelector=nvidia.com/gpu.count", timeout_s=30.0)
        if len(msgspec.json.decode(answer.body)["items"]) == nodes:
            return
        await asyncio.sleep(0.2)
    raise RuntimeError("the nodes are not labelled within 60 s")


def _profile(made: Fleet, service: str, state: Path) -> Any:
    out = os.environ.get("KERF_PROFILE_OUT", f"{state}/profile.txt")
    return subprocess.Popen(
        ["py-spy", "record", "-d", "4", "-r", "500", "-f", "raw", "-o", out, "-p", str(made.processes[service].pid)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def double_bookings(found: list[dict[str, Any]]) -> int:
    """GPUs whose bound pods' grants exceed them."""
    booked = Booked()
    booked.add(found)
    return booked.doubled(MEMORY_MIB)


async def run(args: argparse.Namespace) -> dict[str, Any]:
    def say(text: str) -> None:
        sys.stderr.write(text + "\n")

    with tempfile.TemporaryDirectory(prefix="kerf-bench-") as folder:
        state = Path(folder)
        binaries = find_binaries(("etcd", "kube-apiserver", "kube-scheduler"), build=True)
        plane = ControlPlane(state / "plane", binaries=binaries).start()
        try:
            cluster.apply_policies(plane)
            kube = await cluster.transport(plane)
            await cluster.create_nodes(kube, args.nodes, gpus=GPUS, extended=EXTENDED)
            await kube.close()
            if not args.only_kerf:
                await ceiling(plane, min(300, args.pods), args.nodes, 16)  # the first burst of a fresh server is slow
            rounds = []
            for number in range(args.rounds):
                (state / f"kerf-{number}").mkdir()
                rounds.append(await _round(plane, args, state / f"kerf-{number}"))
                say(f"round {number + 1}: {json.dumps(rounds[-1])}")
            result: dict[str, Any] = {"pods": args.pods, "nodes": args.nodes}
            return result | (rounds[0] if args.rounds == 1 else {"rounds": rounds, "summary": summary(rounds)})
        finally:
            plane.stop()


async def _round(plane: ControlPlane, args: argparse.Namespace, state: Path) -> dict[str, Any]:
    """The loop, kube-scheduler and Kerf, one after another."""
    result: dict[str, Any] = {}
    if not args.only_kerf:
        rates = {str(limit): await ceiling(plane, args.pods, args.nodes, limit) for limit in (16, 64)}
        result |= {"ceiling_by_in_flight": rates, "ceiling_pods_per_s": max(rates.values())}
        result["kube_scheduler_pods_per_s"] = await kube_scheduler(plane, args.pods)
    result |= await kerf(plane, args, state)
    if not args.only_kerf:
        result["ratio_to_ceiling"] = round(result["kerf_pods_per_s"] / result["ceiling_pods_per_s"], 3)
        result["ratio_to_kube_scheduler"] = round(result["kerf_pods_per_s"] / result["kube_scheduler_pods_per_s"], 3)
    return result


SUMMED = (
    "ceiling_pods_per_s",
    "kube_scheduler_pods_per_s",
    "kerf_pods_per_s",
    "ratio_to_ceiling",
    "ratio_to_kube_scheduler",
    "kerf_cpu_us_per_pod",
)


def summary(rounds: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Median, smallest and largest of what was measured in each of the rounds."""
    found = {key: [one[key] for one in rounds] for key in SUMMED if key in rounds[0]}
    found |= {
        f"kerf_cpu_us_per_pod: {name}": [one["kerf_cpu_us_per_pod_by_process"][name] for one in rounds]
        for name in rounds[0]["kerf_cpu_us_per_pod_by_process"]
    }
    return {
        key: {"median": statistics.median(values), "min": min(values), "max": max(values)}
        for key, values in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.bind", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=1, help="so often all three in turn, and their medians")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only-kerf", action="store_true", help="without the ceiling and kube-scheduler")
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="the services' interpreter, of this one's version; in Kerf's image it is Debian's, /usr/bin/python3",
    )
    parser.add_argument("--profile", default="", help="py-spy this service meanwhile (needs py-spy on PATH)")
    args = parser.parse_args()
    result = uvloop.run(run(args))
    sys.stdout.write(json.dumps(result) + "\n" if args.json else "".join(f"{k}: {v}\n" for k, v in result.items()))


if __name__ == "__main__":
    main()
