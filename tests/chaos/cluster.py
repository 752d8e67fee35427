"""A small cluster: API server, NATS, two of each service that may have a second, a node agent for all nodes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

from shared.bus.embedded import EmbeddedServer
from shared.contracts import metrics_queries, queries
from shared.contracts.base import encode
from shared.contracts.metrics_queries import UsageAnswer, UsageQuery
from shared.contracts.queries import InspectAnswer, InspectQuery, StatusAnswer
from shared.kube.transport import TransportError
from shared.model.hollow_node import HollowNode
from shared.model.objects import Pod
from tests.chaos import audit
from tests.chaos.load import Load
from tests.chaos.processes import Process
from tests.chaos.site import Site, on_site
from tests.support.manifests import apply_all
from tests.support.nats_cluster import NatsCluster
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane

NODES, GPUS_A_NODE, MEMORY_MIB = 20, 4, 81_920
SETTLED_S = 60.0
_NUMBERS = itertools.count(1)


class ChaosCluster:
    def __init__(self, site: Site, *, nats_replicas: int = 1) -> None:
        self.site = site
        state = site.state
        hollow = [
            HollowNode(name=f"chaos-{i}", count=GPUS_A_NODE, memory_mib=MEMORY_MIB, nvlinks=0) for i in range(NODES)
        ]
        self.gpus = audit.inventory(hollow)
        fleet = state / "fleet.json"
        fleet.write_bytes(encode(hollow))
        common = {
            "KERF_NATS_URL": site.nats_url,
            "KERF_NATS_REPLICAS": str(nats_replicas),
            "KERF_LOG_LEVEL": "info",
        }
        settings = {
            "placement": {},
            "watcher": {"KERF_KUBECONFIG": str(self.site.watcher_kubeconfig())},
            "node_agent": {"KERF_HOLLOW_FILE": str(fleet)},
            "metrics": {"KERF_DATABASE": str(state / "usage.db")},
        }
        copies = {"placement": 2, "watcher": 2, "node_agent": 1, "metrics": 1}
        self.site.services = {
            f"{module}-{i}": Process(f"{module}-{i}", module, common | settings[module], state)
            for module, count in copies.items()
            for i in range(count)
        }

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await asyncio.to_thread(apply_all, self.site.plane, "00", "10", "11")
        await self.site.create_nodes({node for node, _ in self.gpus})
        await self.repair_all()

    async def repair_all(self) -> None:
        """Everything runs and nothing is held up; returns when a leader has all nodes."""
        self.site.repair()
        await eventually(self._whole, within_s=SETTLED_S, every_s=0.2, what="a leader that has synced all nodes")

    async def _whole(self) -> bool:
        status = await self.site.status()
        return status is not None and status.synced_nodes == NODES and status.nodes == NODES

    # --- looking ------------------------------------------------------------------------------------------------

    async def leader(self) -> Process:
        """The leading process; its id is in the holder's name."""
        status: StatusAnswer = await eventually(self.site.status, within_s=SETTLED_S, every_s=0.1, what="a leader")
        process = self.site.process_of(status)
        assert process is not None, f"{status.holder} has ended"
        return process

    async def another_term(self, old: int) -> StatusAnswer:
        """The status of a leader whose term is later than `old`."""

        async def later() -> StatusAnswer | None:
            status = await self.site.status()
            return status if status is not None and status.term > old else None

        found: StatusAnswer = await eventually(later, within_s=SETTLED_S, every_s=0.1, what=f"a term after {old}")
        return found

    async def term(self) -> int:
        status: StatusAnswer = await eventually(self.site.status, within_s=SETTLED_S, every_s=0.1, what="a leader")
        return status.term

    # --- the verdict --------------------------------------------------------------------------------------------

    async def verdict(self, load: Load) -> None:
        """Waits until the cluster has settled, then checks the cluster's objects, and the book against them and against
        a new one."""
        await self.repair_all()
        pods = await self.settled(load)
        self.fair(pods, load)
        book = await self._book()
        assert book == _by_objects(pods), "the leader's book is not what the cluster's objects say"
        term, leader = await self.term(), await self.leader()
        leader.end()
        leader.start()
        await self.another_term(term)
        await self.repair_all()
        self.fair(await self.settled(load), load)
        assert await self._book() == book, "the rebuilt book is not the lost one"
        usage = await self.site.ask(metrics_queries.USAGE.subject, UsageQuery(), UsageAnswer)
        assert usage is not None, "metrics does not answer"
        assert usage.error == ""
        dead = [name for name, process in self.site.services.items() if not process.alive]
        assert not dead, f"ended by themselves: {dead}"

    def fair(self, pods: list[Pod], load: Load) -> None:
        """Checks P1 and related properties from the API server's objects alone. They hold at any time, also before the
        cluster has settled."""
        assert audit.double_bookings(pods, self.gpus) == []
        assert audit.misfits(pods, load.asks, self.gpus) == []

    async def settled(self, load: Load) -> list[Pod]:
        """Waits until nothing is held or pending release and every pod is bound or has a reason. Returns the pods."""
        why = "no check has run yet"

        async def when_settled() -> list[Pod] | None:
            nonlocal why
            status = await self.site.status()
            if status is None:
                why = "no leader answers"
                return None
            if status.pods_holding or status.pods_leaving:
                why = f"{status.pods_holding} holds and {status.pods_leaving} leaving grants"
                return None
            try:
                pods = await load.pods()
            except TransportError as error:
                why = str(error)
                return None
            self.fair(pods, load)
            lost = sorted(set(load.asks) - {pod.metadata.name for pod in pods})
            assert not lost, f"the API server has lost {lost}"
            fitting, silent = audit.fitting(pods, load.asks, self.gpus), audit.silent(pods)
            why = f"would fit and wait: {fitting}; wait without a reason: {silent}; status {status}"
            return pods if not fitting and not silent else None

        try:
            found: list[Pod] = await eventually(when_settled, within_s=SETTLED_S, every_s=0.3, what="a settled cluster")
        except AssertionError as error:
            raise AssertionError(f"{error}; at last: {why}\n{self.site.tails()}") from error
        return found

    async def _book(self) -> dict[tuple[str, str], tuple[int, int, tuple[str, ...]]]:
        """By GPU: booked MiB, booked milli, the pods."""
        answer: InspectAnswer = await eventually(
            lambda: self.site.ask(queries.INSPECT.subject, InspectQuery(), InspectAnswer),
            within_s=SETTLED_S,
            every_s=0.1,
            what="an inspection",
        )
        assert answer.error == ""
        return {
            (node.node, gpu.uuid): (
                gpu.allocated_memory_mib,
                gpu.allocated_compute_milli,
                tuple(sorted(pod.name for pod in gpu.pods)),
            )
            for node in answer.nodes
            for gpu in node.gpus
            if gpu.pods
        }

    async def emptied(self, load: Load) -> None:
        """Checks that every GPU is free again after the last pod was deleted: nothing leaks."""
        await load.clear()

        async def free() -> bool:
            status = await self.site.status()
            return (
                status is not None
                and status.gpu_milli_allocated == 0 == status.gpu_memory_mib_allocated
                and status.pods_waiting == 0
            )

        try:
            await eventually(free, within_s=SETTLED_S, every_s=0.2, what="all capacity back")
        except AssertionError as error:
            raise AssertionError(f"{error}: {await self.site.status()}\n{self.site.tails()}") from error


def _by_objects(pods: list[Pod]) -> dict[tuple[str, str], tuple[int, int, tuple[str, ...]]]:
    names: dict[tuple[str, str], set[str]] = {}
    for pod in pods:
        for gpu in audit.taken([pod]):
            names.setdefault(gpu, set()).add(pod.metadata.name)
    return {gpu: (mib, milli, tuple(sorted(names[gpu]))) for gpu, (mib, milli) in audit.taken(pods).items()}


@contextlib.asynccontextmanager
async def chaos_cluster(
    plane: ControlPlane, state: Path, nats: EmbeddedServer | NatsCluster | None = None
) -> AsyncIterator[ChaosCluster]:
    """`nats`: as in `on_site`."""
    async with on_site(plane, state, nats) as site:
        cluster = ChaosCluster(site, nats_replicas=len(nats.servers) if isinstance(nats, NatsCluster) else 1)
        await cluster.start()
        yield cluster


@contextlib.asynccontextmanager
async def loaded(cluster: ChaosCluster, seed: int) -> AsyncIterator[Load]:
    """Its own namespace with an auditor. At the end the cluster is emptied, and all capacity must be free again."""
    namespace = f"chaos-{os.getpid()}-{next(_NUMBERS)}"
    await cluster.repair_all()
    await cluster.site.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    load = Load(cluster.site.kube, namespace, seed=seed, memory_mib=MEMORY_MIB)
    auditor = asyncio.create_task(_audit(cluster, load))
    try:
        yield load
        assert not auditor.done(), auditor.exception()
    finally:
        auditor.cancel()
        cluster.site.wire.thaw()
        await load.clear()
    await cluster.emptied(load)


async def _audit(cluster: ChaosCluster, load: Load) -> None:
    """Checks continuously, because a temporary double booking is one too."""
    while True:
        with contextlib.suppress(TransportError):
            pods = await load.pods()
            assert audit.double_bookings(pods, cluster.gpus) == []
        await asyncio.sleep(0.25)


def seeds(first: int) -> list[int]:
    """One in CI; as many as KERF_CHAOS_ROUNDS for long runs."""
    rounds = int(os.environ.get("KERF_CHAOS_ROUNDS", "1"))
    return [first * 1000 + i for i in range(rounds)]


def rng(seed: int) -> random.Random:
    return random.Random(seed)
