"""Gangs of a high priority come into a cluster full of low-priority pods: how long until all of each have their places.

    python -m bench.preempt [--nodes 500] [--gangs 200] [--rate 5] [--profile preemptor] [--json]

A real API server with its disruption controller, hollow nodes of eight GPUs, a low-priority pod without grace period on
each GPU; then gangs of four one-GPU pods, so many a second. Times are from the answer to the creation of a gang's last
member to the public event of its last Binding. A tenth of the low pods, the cheapest to evict, are under
PodDisruptionBudgets: one allows none to go, the others 5, 20 and 50 of a hundred.

- `evictions_needless`: low pods gone whose GPU no gang's pod has in the end. As each has one GPU, and so each of a
  gang's pods, that is also every eviction beyond one a GPU that a gang needed.
- `budget_violations`: the budgets' statuses, watched all the while at the API server: how often one had fewer healthy
  pods than it asks for.
- `double_bookings`: what placement's own audit counts, and GPUs that two pods' grants at the API server have.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from bench import cluster
from bench.bind import GPUS, MEMORY_MIB, PODS, Watched, _labelled, _profile, _ready, double_bookings
from bench.processes import Fleet, fleet
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import queries, subjects
from shared.contracts.base import decode, encode
from shared.contracts.envelope import unwrap
from shared.contracts.queries import StatusAnswer, StatusQuery
from shared.kube.decoder import Lines
from shared.kube.transport import Transport
from shared.model import names
from shared.model.grant import decode_grant
from tools.control_plane import ControlPlane, find_binaries

MEMBERS = 4
PRIORITIES = {"low": 0, "high": 1000}
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
BUDGETS = f"/apis/policy/v1/namespaces/{cluster.NAMESPACE}/poddisruptionbudgets"
MAY_GO_PERCENT = (0, 5, 20, 50)
"""Of each budget's pods."""
GUARDED_EVERY = 10
WITHIN_S = 120.0
"""From the last gang's creation to the end of the bench, at the latest."""

Document = dict[str, Any]


def pod(
    name: str, priority: str, *, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
) -> Document:
    """One GPU; no kubelet is here to end a pod in its grace period, so it has none."""
    limits = {names.RESOURCE_GPU: "1"}
    resources = {"limits": limits, "requests": {"cpu": "1", "memory": "1Gi", **limits}}
    spec = {
        "priorityClassName": priority,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "i", "resources": resources}],
    }
    return {
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": spec,
    }


def budget_of(number: int) -> str:
    """The budget that the low pod of this number is under; empty for most."""
    return f"budget-{number // GUARDED_EVERY % len(MAY_GO_PERCENT)}" if number % GUARDED_EVERY == 0 else ""


class Budgets:
    """What the API server says of the disruption budgets, each time that it changes."""

    def __init__(self) -> None:
        self.violations = 0
        self.lines = 0

    async def watch(self, plane: ControlPlane, version: str) -> None:
        """Until cancelled. A budget that is violated counts once for each status that says so."""
        kube = await cluster.transport(plane, connections=1)
        try:
            async with kube.stream(f"{BUDGETS}?watch=true&resourceVersion={version}", read_timeout_s=600.0) as (
                _,
                chunks,
            ):
                lines = Lines()
                async for chunk in chunks:
                    for line in lines.feed(chunk):
                        self._seen(msgspec.json.decode(line)["object"])
        finally:
            await kube.close()

    def _seen(self, budget: Document) -> None:
        status = budget.get("status", {})
        self.lines += 1
        self.violations += status.get("currentHealthy", 0) < status.get("desiredHealthy", 0)


class Stages:
    """How many events of each kind came in each second: where a plan stands still."""

    def __init__(self) -> None:
        self.at: list[tuple[float, str]] = []

    async def heard(self, incoming: Incoming) -> None:
        _, event = unwrap(incoming.payload)
        self.at.append((time.perf_counter(), type(event).__name__))

    def told(self, began: float) -> str:
        by_second = Counter((int(at - began), kind) for at, kind in self.at if at >= began)
        return "".join(f"{second} s: {kind} {count}\n" for (second, kind), count in sorted(by_second.items()))


async def fill(kube: Transport, watched: Watched, low: int) -> None:
    """A low-priority pod on every GPU, all of them running since some time, those under a budget since the shortest."""

    async def one(number: int) -> None:
        under = budget_of(number)
        await cluster.must(kube, "POST", PODS, pod(f"low-{number}", "low", labels={"budget": under} if under else {}))

    await cluster.in_flight(low, 32, one)
    await watched.until(low)
    now = datetime.now(UTC)

    async def start(number: int) -> None:
        ran = timedelta(seconds=60 if budget_of(number) else 600 + number)
        started = (now - ran).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"phase": "Running", "startTime": started, "conditions": [{"type": "Ready", "status": "True"}]}
        answer = await kube.request(
            "PATCH",
            f"{PODS}/low-{number}/status",
            msgspec.json.encode({"status": status}),
            content_type="application/merge-patch+json",
        )
        if answer.status != 200:
            raise RuntimeError(f"status of low-{number}: {answer.status} {answer.body[:200]!r}")

    await cluster.in_flight(low, 32, start)


async def guard(kube: Transport, low: int) -> str:
    """Makes the budgets, and waits until the controller has counted; returns the version to watch from."""
    for number, percent in enumerate(MAY_GO_PERCENT):
        name = f"budget-{number}"
        under = sum(1 for i in range(low) if budget_of(i) == name)
        body = {
            "metadata": {"name": name},
            "spec": {"minAvailable": under - under * percent // 100, "selector": {"matchLabels": {"budget": name}}},
        }
        await cluster.must(kube, "POST", BUDGETS, body)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        listed = msgspec.json.decode((await kube.request("GET", BUDGETS, timeout_s=30.0)).body)
        statuses = [item.get("status", {}) for item in listed["items"]]
        if all(s.get("observedGeneration") and s["currentHealthy"] == s["expectedPods"] for s in statuses):
            return str(listed["metadata"]["resourceVersion"])
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the disruption budgets are not counted within 60 s: {statuses}")


async def gangs(kube: Transport, watched: Watched, count: int, rate: float) -> None:
    """Creates them at this rate, whatever becomes of them."""

    async def member(gang: int, number: int) -> None:
        notes = {names.ANNOTATION_GANG: f"gang-{gang}", names.ANNOTATION_GANG_SIZE: str(MEMBERS)}
        name = f"gang-{gang}-{number}"
        await cluster.must(kube, "POST", PODS, pod(name, "high", annotations=notes))
        watched.created[name] = time.perf_counter()

    async def one(gang: int) -> None:
        await asyncio.gather(*(member(gang, number) for number in range(MEMBERS)))

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for gang in range(count):
            await asyncio.sleep(max(0.0, began + gang / rate - time.perf_counter()))
            group.create_task(one(gang))


def gpus_by_pod(found: list[Document]) -> dict[str, set[tuple[str, str]]]:
    """(node, GPU) of the bound pods, from their grants at the API server."""
    held = {}
    for seen in found:
        note = (seen["metadata"].get("annotations") or {}).get(names.ANNOTATION_GRANT)
        if seen["spec"].get("nodeName") and note:
            held[seen["metadata"]["name"]] = {
                (s.node, s.uuid) for c in decode_grant(note).containers.values() for s in c.gpus
            }
    return held


async def measure(made: Fleet, kube: Transport, plane: ControlPlane, args: argparse.Namespace, state: Path) -> Document:
    low = args.nodes * GPUS
    bus = await NatsBus.connect(made.nats.url, name="bench")
    watched = Watched()
    await bus.subscribe(f"{subjects.VERSION}.event.pod.bound.ns.*", watched.heard)
    stages = Stages()
    await bus.subscribe(subjects.PREEMPTIONS, stages.heard)
    await bus.subscribe(subjects.REJECTED, stages.heard)
    await _ready(made, bus, args.nodes)
    await _labelled(kube, args.nodes)
    await fill(kube, watched, low)
    version = await guard(kube, low)
    before = gpus_by_pod(await cluster.pods(kube))
    budgets = Budgets()
    watching = asyncio.create_task(budgets.watch(plane, version))
    sampler = _profile(made, args.profile, state) if args.profile else None
    cpu, began = made.cpu() | plane.cpu_seconds(), time.perf_counter()
    await gangs(kube, watched, args.gangs, args.rate)
    watched.wanted = low + args.gangs * MEMBERS
    try:
        await watched.until(watched.wanted, WITHIN_S)
    except TimeoutError:
        sys.stderr.write(f"not all are bound: {made.logs()}\n")
    seconds = time.perf_counter() - began
    spent = {name: round(at - cpu[name], 2) for name, at in (made.cpu() | plane.cpu_seconds()).items()}
    made.check()
    if watching.done():
        watching.result()  # a watch that broke has not looked at the budgets
    watching.cancel()
    if sampler is not None:
        await asyncio.to_thread(sampler.wait, 60)
    status = decode(await bus.request(queries.STATUS.subject, encode(StatusQuery()), timeout_s=10), StatusAnswer)
    await bus.drain()
    found = await cluster.pods(kube)
    after = gpus_by_pod(found)
    evicted = [name for name in before if name not in after]
    taken = set().union(*(gpus for name, gpus in after.items() if name.startswith("gang-")))
    waited = {gang: took for gang in range(args.gangs) if (took := waited_s(watched, gang)) is not None}
    times = sorted(waited.values())
    if args.verbose:
        slowest = sorted(waited, key=waited.__getitem__, reverse=True)[:20]
        sys.stderr.write(stages.told(began))
        sys.stderr.write(f"the slowest gangs, in ms: { {gang: round(waited[gang] * 1000) for gang in slowest} }\n")
    return {
        "nodes": args.nodes,
        "low_priority_pods": low,
        "gangs": args.gangs,
        "gangs_a_second": args.rate,
        "bound": len(times),
        "time_to_bound_ms_p50": percentile_ms(times, 50),
        "time_to_bound_ms_p99": percentile_ms(times, 99),
        "evictions": len(evicted),
        "evictions_needless": sum(1 for name in evicted if not before[name] & taken),
        "budget_violations": budgets.violations,
        "double_bookings": status.double_bookings + double_bookings(found),
        "evicted_by_budget": {
            name: sum(1 for e in evicted if budget_of(int(e.removeprefix("low-"))) == name)
            for name in sorted({budget_of(i) for i in range(low)} - {""})
        },
        "budget_statuses_seen": budgets.lines,
        "seconds": round(seconds, 1),
        "cpu_s": spent,
    }


def waited_s(watched: Watched, gang: int) -> float | None:
    """From the gang's last member created to its last bound; None where one is not."""
    members = [f"gang-{gang}-{number}" for number in range(MEMBERS)]
    if any(name not in watched.bound for name in members):
        return None
    return max(watched.bound[name] for name in members) - max(watched.created[name] for name in members)


def percentile_ms(times: list[float], percent: int) -> float | None:
    return round(times[min(len(times) - 1, len(times) * percent // 100)] * 1000, 1) if times else None


async def run(args: argparse.Namespace) -> Document:
    with tempfile.TemporaryDirectory(prefix="kerf-bench-") as folder:
        state = Path(folder)
        plane = ControlPlane(
            state / "plane", binaries=find_binaries(("etcd", "kube-apiserver", "kube-controller-manager"), build=True)
        ).start()
        try:
            cluster.apply_policies(plane)
            plane.start_controllers("disruption")
            kube = await cluster.transport(plane)
            for name, value in PRIORITIES.items():
                await cluster.must(kube, "POST", CLASSES, {"metadata": {"name": name}, "value": value})
            await cluster.create_nodes(kube, args.nodes, gpus=GPUS, extended="example.com/device")
            (state / "kerf").mkdir()
            async with fleet(state / "kerf") as made:
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
                            for i in range(args.nodes)
                        ]
                    )
                )
                made.start("placement", {})
                made.start("watcher", {"kubeconfig": str(plane.service_account("kerf-system", "kerf-watcher"))})
                made.start("node_agent", {"hollow_file": str(hollow)})
                made.start("preemptor", {}, **({"KERF_LOG_LEVEL": "info"} if args.verbose else {}))
                made.start("metrics", {})
                try:
                    return await measure(made, kube, plane, args, state)
                finally:
                    if args.verbose:
                        sys.stderr.write((state / "kerf" / "preemptor.log").read_text())
                    await kube.close()
        finally:
            plane.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.preempt", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--gangs", type=int, default=200)
    parser.add_argument("--rate", type=float, default=5.0, help="gangs a second")
    parser.add_argument("--profile", default="", help="py-spy this service meanwhile (needs py-spy on PATH)")
    parser.add_argument("--verbose", action="store_true", help="the preemptor's log on stderr")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.nodes < 1 or args.rate <= 0 or not 1 <= args.gangs <= args.nodes * GPUS // MEMBERS // 2:
        parser.error(f"at least one gang, and nodes for twice as many: a node has {GPUS} GPUs, a gang {MEMBERS} pods")
    result = uvloop.run(run(args))
    sys.stdout.write(json.dumps(result) + "\n" if args.json else "".join(f"{k}: {v}\n" for k, v in result.items()))


if __name__ == "__main__":
    main()
