"""The cluster of the churn: two of each service that may have a second, and three processes of slow hollow nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from shared.contracts.base import encode
from shared.model.hollow_node import HollowNode
from tests.chaos import audit
from tests.chaos.churn import slow_agent
from tests.chaos.churn.journal import Reader
from tests.chaos.churn.load import PRIORITIES
from tests.chaos.churn.refusals import Refusals
from tests.chaos.processes import Process
from tests.chaos.site import Site
from tests.support.manifests import apply_all, wait_for_policies
from tests.support.waiting import eventually
from tests.support.wire import Wire

AGENTS, NODES_AN_AGENT, GPUS_A_NODE, MEMORY_MIB = 3, 8, 4, 81_920
NODES = AGENTS * NODES_AN_AGENT
NAMESPACE = "churn"
START_S = 90.0
_MANIFESTS = ("00", "10", "11", "20", "21", "22", "23")
_LINKED = ("placement", "watcher", "preemptor")
_NEEDED = ("placement", "watcher")
"""Without one of each no pod is placed."""
_PREEMPTOR = {"KERF_IMMUNITY_S": "5", "KERF_DEADLINE_S": "15", "KERF_DEFRAGMENTATION_GPU_SECONDS_PER_HOUR": "100000"}


def _names(module: str) -> list[str]:
    return [f"{module}-{number}" for number in range(2)]


@contextlib.asynccontextmanager
async def links(port: int, *modules: str) -> AsyncIterator[dict[str, Wire]]:
    """By the process of these modules that it connects with the server on this port, a connection of its own."""
    async with contextlib.AsyncExitStack() as stack:
        names = [name for module in modules or _LINKED for name in _names(module)]
        yield {name: await stack.enter_async_context(Wire(port)) for name in names}


class ChurnCluster:
    def __init__(self, site: Site, links: dict[str, Wire], ways: dict[str, Wire]) -> None:
        """`links`: as `links()` makes them for the site's NATS server; `ways`: those of the watchers to the wire of the
        API server."""
        self.site, self.links, self.ways, self.refusals = site, links, ways, Refusals(site.plane.request)
        self.nodes: dict[str, tuple[str, ...]] = {}
        """By the process that simulates them."""
        self.journals: dict[str, Reader] = {}
        self.gpus: audit.Gpus = {}

    def prepare(self, *, seed: int, renew_s: float) -> None:
        common = {"KERF_NATS_URL": self.site.nats.url, "KERF_LOG_LEVEL": "info"}
        settings = {
            "placement": {"KERF_RENEW_TERM_S": str(renew_s)},
            "watcher": {},
            "preemptor": _PREEMPTOR,
        }
        for module, own in settings.items():
            for name in _names(module):
                link = {"KERF_NATS_URL": f"nats://127.0.0.1:{self.links[name].port}"}
                if name in self.ways:
                    link["KERF_KUBECONFIG"] = str(self.site.watcher_kubeconfig(name, self.ways[name]))
                self._add(name, module, common | own | link)
        for number in range(AGENTS):
            self._add_agent(f"agent-{number}", common, seed * AGENTS + number)

    def _add(self, name: str, module: str, environment: dict[str, str], program: str = "") -> None:
        self.site.services[name] = Process(name, module, environment, self.site.state, program=program)

    def _add_agent(self, name: str, common: dict[str, str], seed: int) -> None:
        hollow = [
            HollowNode(name=f"{name}-node-{i}", count=GPUS_A_NODE, memory_mib=MEMORY_MIB, nvlinks=0)
            for i in range(NODES_AN_AGENT)
        ]
        fleet, journal = self.site.state / f"{name}.json", self.site.state / f"{name}.journal"
        fleet.write_bytes(encode(hollow))
        own = {"KERF_HOLLOW_FILE": str(fleet), slow_agent.JOURNAL: str(journal), slow_agent.SEED: str(seed)}
        self._add(name, "node_agent", common | own, "tests.chaos.churn.slow_agent")
        self.nodes[name] = tuple(node.name for node in hollow)
        self.journals[name] = Reader(journal)
        self.gpus |= audit.inventory(hollow)

    async def start(self) -> None:
        await asyncio.to_thread(apply_all, self.site.plane, *_MANIFESTS)
        await asyncio.to_thread(wait_for_policies, self.site.plane)
        await self.site.create_nodes({node for node, _ in self.gpus})
        for name, value in PRIORITIES.items():
            await self.site.post(
                "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value}
            )
        await self.site.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        await self.refusals.prepare()
        self.repair()
        await eventually(self._whole, within_s=START_S, every_s=0.2, what="a leader that has synced all nodes")

    def repair(self) -> None:
        """Nothing is held up or refused, and every process runs."""
        self.refusals.end_all()
        for link in (*self.links.values(), *self.ways.values()):
            link.thaw()
        self.site.repair()

    def able(self) -> bool:
        """One placement and one watcher run, with connections that let everything pass, and nothing is refused. They
        may still have to take over."""
        return (
            self.refusals.none
            and self.site.wire.passes
            and all(any(map(self._works, _names(module))) for module in _NEEDED)
        )

    def is_last(self, name: str) -> bool:
        """Whether it works, and no other of its service does, without which no pod is placed."""
        module = self.site.services[name].module
        return module in _NEEDED and [other for other in _names(module) if self._works(other)] == [name]

    def _works(self, name: str) -> bool:
        process = self.site.services[name]
        ways = [wires[name] for wires in (self.links, self.ways) if name in wires]
        return process.alive and not process.frozen and all(way.passes for way in ways)

    async def _whole(self) -> bool:
        status = await self.site.status()
        return status is not None and status.synced_nodes == NODES
