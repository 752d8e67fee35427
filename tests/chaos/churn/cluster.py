"""The cluster of the churn: two of each service that may have a second, and three processes of slow hollow nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts.base import encode
from shared.kube.transport import Transport
from shared.model.hollow_node import HollowNode
from tests.chaos import audit
from tests.chaos.churn import slow_agent
from tests.chaos.churn.journal import Reader
from tests.chaos.churn.load import PRIORITIES
from tests.chaos.processes import Process
from tests.chaos.site import Site
from tests.support.manifests import apply_all, wait_for_policies
from tests.support.waiting import eventually
from tests.support.wire import Wire
from tools.control_plane import ControlPlane

AGENTS, NODES_AN_AGENT, GPUS_A_NODE, MEMORY_MIB = 3, 8, 4, 81_920
NODES = AGENTS * NODES_AN_AGENT
NAMESPACE = "churn"
START_S = 90.0
_MANIFESTS = ("00", "10", "11", "20", "21", "22", "23")
_PREEMPTOR = {"KERF_IMMUNITY_S": "5", "KERF_DEADLINE_S": "15", "KERF_DEFRAGMENTATION_GPU_SECONDS_PER_HOUR": "100000"}


class ChurnCluster(Site):
    def __init__(
        self, plane: ControlPlane, nats: EmbeddedServer, wire: Wire, kube: Transport, bus: NatsBus, state: Path
    ) -> None:
        super().__init__(plane, nats, wire, kube, bus, state)
        self.nodes: dict[str, tuple[str, ...]] = {}
        """By the process that simulates them."""
        self.journals: dict[str, Reader] = {}
        self.gpus: audit.Gpus = {}

    def prepare(self, *, seed: int, renew_s: float) -> None:
        common = {"KERF_NATS_URL": self.nats.url, "KERF_LOG_LEVEL": "info"}
        settings = {
            "placement": {"KERF_RENEW_TERM_S": str(renew_s)},
            "watcher": {"KERF_KUBECONFIG": str(self.watcher_kubeconfig())},
            "preemptor": _PREEMPTOR,
        }
        for module, own in settings.items():
            for number in range(2):
                self._add(f"{module}-{number}", module, common | own)
        for number in range(AGENTS):
            self._add_agent(f"agent-{number}", common, seed * AGENTS + number)

    def _add(self, name: str, module: str, environment: dict[str, str], program: str = "") -> None:
        self.services[name] = Process(name, module, environment, self.state, program=program)

    def _add_agent(self, name: str, common: dict[str, str], seed: int) -> None:
        hollow = [
            HollowNode(name=f"{name}-node-{i}", count=GPUS_A_NODE, memory_mib=MEMORY_MIB, nvlinks=0)
            for i in range(NODES_AN_AGENT)
        ]
        fleet, journal = self.state / f"{name}.json", self.state / f"{name}.journal"
        fleet.write_bytes(encode(hollow))
        own = {"KERF_HOLLOW_FILE": str(fleet), slow_agent.JOURNAL: str(journal), slow_agent.SEED: str(seed)}
        self._add(name, "node_agent", common | own, "tests.chaos.churn.slow_agent")
        self.nodes[name] = tuple(node.name for node in hollow)
        self.journals[name] = Reader(journal)
        self.gpus |= audit.inventory(hollow)

    async def start(self) -> None:
        await asyncio.to_thread(apply_all, self.plane, *_MANIFESTS)
        await asyncio.to_thread(wait_for_policies, self.plane)
        await self.create_nodes({node for node, _ in self.gpus})
        for name, value in PRIORITIES.items():
            await self.post("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})
        await self.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.repair()
        await eventually(self._whole, within_s=START_S, every_s=0.2, what="a leader that has synced all nodes")

    async def _whole(self) -> bool:
        status = await self.status()
        return status is not None and status.synced_nodes == NODES
