"""A cluster in which many pods want the one GPU that a node serves to others: two of each service, one process of
agents for the node with the GPU, and one for the nodes of its clients."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from cli.up import node_object
from shared.contracts.base import encode
from shared.kube.transport import TransportError
from shared.model import names
from shared.model.grant import decode_grant, serving_node
from shared.model.hollow_node import HollowNode
from shared.model.network import NetworkLink, RemoteAbility
from shared.model.objects import Pod
from tests.chaos import audit
from tests.chaos.audit import Ask
from tests.chaos.churn import slow_agent
from tests.chaos.churn.auditor import Auditor
from tests.chaos.churn.journal import Reader
from tests.chaos.load import Load
from tests.chaos.processes import Process
from tests.chaos.site import Site, on_site
from tests.support.manifests import apply_all, wait_for_policies
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane

SERVING, CLIENTS, MEMORY_MIB = "serving", 8, 81_920
NEAR = NetworkLink(rtt_us=10, mib_s=20_000)
NAMESPACE = "race"
PARTS = (
    Ask(1, memory_mib=MEMORY_MIB // 4, milli=250),
    Ask(1, memory_mib=MEMORY_MIB // 2, milli=500),
    Ask(1),
)
SETTLED_S = 90.0
LOOK_S = 0.15
AGENTS = ("agent-serving", "agent-clients")


class RemoteCluster:
    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.chance = site, random.Random(seed)
        serving = HollowNode(
            name=SERVING,
            count=1,
            memory_mib=MEMORY_MIB,
            nvlinks=0,
            remote=RemoteAbility(address=f"{SERVING}:14834"),
        )
        ability = RemoteAbility(client=True, network={SERVING: NEAR})
        clients = [HollowNode(name=f"client-{i}", count=0, nvlinks=0, remote=ability) for i in range(CLIENTS)]
        self.nodes = {"agent-serving": (serving,), "agent-clients": tuple(clients)}
        self.gpus = audit.inventory([serving])
        self.journals: dict[str, Reader] = {}
        self.auditor = Auditor(self.gpus)
        self.load = Load(site.kube, NAMESPACE, seed=seed, memory_mib=MEMORY_MIB)
        self.remote: set[str] = set()
        """Grants of pods that were seen bound with the GPU of another node."""
        self._dark: set[str] = set()

    async def start(self) -> None:
        common = {"KERF_NATS_URL": self.site.nats.url, "KERF_LOG_LEVEL": "info"}
        settings = {"placement": {}, "watcher": {"KERF_KUBECONFIG": str(self.site.watcher_kubeconfig())}}
        for module, own in settings.items():
            for number in range(2):
                self.site.services[f"{module}-{number}"] = Process(
                    f"{module}-{number}", module, common | own, self.site.state
                )
        for number, name in enumerate(AGENTS):
            fleet, journal = self.site.state / f"{name}.json", self.site.state / f"{name}.journal"
            fleet.write_bytes(encode(list(self.nodes[name])))
            own = {"KERF_HOLLOW_FILE": str(fleet), slow_agent.JOURNAL: str(journal), slow_agent.SEED: str(number)}
            self.site.services[name] = Process(
                name, "node_agent", common | own, self.site.state, program="tests.chaos.churn.slow_agent"
            )
            self.journals[name] = Reader(journal)
        await asyncio.to_thread(apply_all, self.site.plane, "00", "10", "11", "20", "21", "22", "23")
        await asyncio.to_thread(wait_for_policies, self.site.plane)
        for node in (node for nodes in self.nodes.values() for node in nodes):
            await self.add_node(node.name)
        await self.site.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        await self.repair()

    async def add_node(self, name: str) -> None:
        body = node_object({"name": name})
        body["metadata"]["labels"]["role"] = "serving" if name == SERVING else "client"
        await self.site.post("/api/v1/nodes", body)

    async def remove_node(self, name: str) -> None:
        status, answer = await asyncio.to_thread(self.site.plane.request, "DELETE", f"/api/v1/nodes/{name}", None)
        assert status == 200, answer

    async def repair(self) -> None:
        self.site.repair()
        self._dark.clear()

        async def whole() -> bool:
            status = await self.site.status()
            return status is not None and status.synced_nodes == status.nodes

        await eventually(whole, within_s=SETTLED_S, every_s=0.2, what="a leader that has synced all nodes")

    def kill_agent(self, name: str) -> None:
        """With it all of its nodes are down: nothing runs there."""
        self._hear()
        self.site.services[name].kill()
        self._hear()
        self.auditor.gone_dark([node.name for node in self.nodes[name]])

    # --- pods ---------------------------------------------------------------------------------------------------

    async def create(self, name: str, ask: Ask, *, local: bool = False, owner: str = "") -> None:
        """A pod on a client node that agrees to the GPU of another node, or one on the serving node."""
        notes = {} if local else {names.ANNOTATION_REMOTE: "allowed"}
        metadata: dict[str, Any] = {"annotations": notes}
        spec = {"nodeSelector": {"role": "serving" if local else "client"}}
        await self.load.create(name, ask, metadata=metadata, spec=spec)

    async def pods(self) -> list[Pod]:
        """All pods, each looked at by the auditor."""
        since = time.monotonic()
        found = await self.load.pods()
        self._hear()
        self.auditor.look(found, self.load.asks, since)
        self.remote |= {
            grant.grant_id
            for pod in found
            if pod.spec.node_name
            and (text := pod.metadata.annotations.get(names.ANNOTATION_GRANT))
            and serving_node(grant := decode_grant(text)) not in ("", pod.spec.node_name)
        }
        return found

    def _hear(self) -> None:
        for name, journal in self.journals.items():
            self.auditor.heard(journal.read(), [node.name for node in self.nodes[name]])

    async def watch(self) -> None:
        """The auditor looks all the time: a double booking that passes is one too."""
        while True:
            with contextlib.suppress(TransportError):
                await self.pods()
            await asyncio.sleep(LOOK_S)

    async def serves(self, count: int) -> bool:
        """Whether so many pods have their slice on the serving node, as of a look at all pods."""
        await self.pods()
        return self.auditor.running_on(SERVING) == count

    async def bound(self, name: str) -> Pod:
        async def seen() -> Pod | None:
            return next((pod for pod in await self.pods() if pod.metadata.name == name and pod.spec.node_name), None)

        found: Pod = await eventually(seen, within_s=SETTLED_S, every_s=0.1, what=f"{name} bound")
        return found

    async def end_some(self, count: int) -> int:
        """Up to `count` bound pods end: they finish, or are deleted by force. How many did."""
        living = [
            pod for pod in await self.pods() if pod.spec.node_name and pod.metadata.name in self.load.asks
        ]  # finished ones are in it no more
        chosen = self.chance.sample(living, min(count, len(living)))
        for pod in chosen:
            await getattr(self.load, self.chance.choice(("_finish", "_delete")))(pod.metadata.name)
        return len(chosen)

    async def free(self) -> None:
        """Returns when the book has all capacity back and no pod waits."""

        async def empty() -> bool:
            status = await self.site.status()
            return (
                status is not None
                and (status.gpu_milli_allocated, status.gpu_memory_mib_allocated) == (0, 0)
                and not status.pods_leaving
            )

        try:
            await eventually(empty, within_s=SETTLED_S, every_s=0.2, what="all capacity back")
        except AssertionError as error:
            raise AssertionError(f"{error}: {await self.site.status()}\n{self.site.tails()}") from error


class Summary(msgspec.Struct):
    ended: int = 0
    faults: int = 0


@contextlib.asynccontextmanager
async def remote_cluster(plane: ControlPlane, state: Path, seed: int) -> AsyncIterator[RemoteCluster]:
    async with on_site(plane, state) as site:
        cluster = RemoteCluster(site, seed)
        await cluster.start()
        yield cluster
