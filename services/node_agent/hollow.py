"""Many simulated nodes in one process. Each has a real agent core, and containers that start and end at once.

A grant is handed over when it arrives, through the same device gate as on a real node. Its containers end when its
release is requested. Pure, like the cores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated

import msgspec

from services.node_agent import messages as m
from services.node_agent.core import Agent
from shared.contracts import subjects
from shared.model.gpu import MOST_GPUS, MOST_MIB, Gpu, Inventory, Link
from shared.model.gpu_models import known_model
from shared.model.mig import MigInstance

KEEP_TOMBSTONES = 512


class HollowNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A simulated node: `count` GPUs of one model with `memory_mib` each."""

    name: str
    model: str = "NVIDIA-H200"
    count: Annotated[int, msgspec.Meta(ge=0, le=MOST_GPUS)] = 8
    memory_mib: Annotated[int, msgspec.Meta(ge=1, le=MOST_MIB)] = 143_771
    nvlinks: int = 18
    """NVLinks between each pair of its GPUs. 0: PCIe only, with half of the GPUs on each socket."""
    dra: bool = False
    """Whether the node serves ResourceClaims."""
    firm: bool = False
    """Whether the node claims to enforce slices. There is nothing to enforce: its containers do no work."""
    mig: dict[int, tuple[MigInstance, ...]] = {}
    """The GPUs in MIG mode, by index, with the instances of a fixed layout. An empty tuple: instances are created on
    demand."""


class Fleet:
    """The agents of all simulated nodes."""

    def __init__(self, nodes: Iterable[HollowNode], boot_id: str) -> None:
        """`boot_id` is new at each start: no container of an earlier start runs."""
        self._agents: dict[str, Agent] = {}
        self._boot_id = boot_id
        self.by_token: dict[str, str] = {}
        """Node names by their subject token."""
        self._described = {node.name: node for node in nodes}
        for name in self._described:
            self._agents[name] = Agent(name, keep_tombstones=KEEP_TOMBSTONES)
            self.by_token[subjects.token(name)] = name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._agents)

    def agent(self, node: str) -> Agent:
        return self._agents[node]

    def boot(self, node: str, now: float) -> list[m.Command]:
        """The first commands of a node. Raises KeyError if there is no such node."""
        return self._agents[node].handle(m.InventorySeen(inventory_of(self._described[node], self._boot_id)), now)

    def handle(self, node: str, event: m.Input, now: float) -> list[m.Command]:
        """The commands of the node's agent, including those that follow because its containers start and end at
        once."""
        agent = self._agents[node]
        out = agent.handle(event, now)
        for suspend in [order for order in out if isinstance(order, m.SuspendSlices)]:
            out += agent.handle(
                m.SuspensionDone(suspend.request, tuple(m.SuspendResult(task) for task in suspend.tasks)), now
            )
        match event:
            case m.GrantReceived():
                for container in event.grant.grant.containers:
                    out += self._start(agent, event.grant.uid, container, now)
            case m.SyncReceived():
                for grant in agent.grants():
                    for container in grant.grant.containers:
                        out += self._start(agent, grant.uid, container, now)
            case m.ReleaseReceived():
                for lease in agent.leases_of(event.release.grant_id):
                    out += agent.handle(m.ContainerEnded(lease.uid, lease.container), now)
        return out

    def _start(self, agent: Agent, uid: str, container: str, now: float) -> list[m.Command]:
        started = agent.handle(m.StartRequested(uid, container), now)
        # A grant that was refused as old or as released belongs to no pod that placement should be asked about.
        return [command for command in started if not isinstance(command, m.FetchGrant)]


def inventory_of(node: HollowNode, boot_id: str) -> Inventory:
    """A simulated node's inventory. The same name gives the same UUIDs at each start, in NVML's format."""
    known = known_model(node.model)
    gpus = tuple(
        Gpu(
            uuid=_uuid(node.name, index),
            index=index,
            model=node.model,
            memory_mib=node.memory_mib,
            compute_capability=known.capability if known else "",
            pci_bus_id=f"00000000:{index + 1:02X}:00.0",
            numa_node=0 if index < (node.count + 1) // 2 else 1,
            mig_enabled=index in node.mig,
            mig_on_demand=node.mig.get(index) == (),
            mig_instances=node.mig.get(index, ()),
        )
        for index in range(node.count)
    )
    links = tuple(
        Link(a=a, b=b, nvlinks=node.nvlinks, pcie="node" if gpus[a].numa_node == gpus[b].numa_node else "system")
        for a in range(node.count)
        for b in range(a + 1, node.count)
    )
    strategies = (
        *Inventory(node="", boot_id="").strategies,
        *(("interposer", "time_slice") if node.firm else ()),
        *(("mig",) if node.mig else ()),
    )
    return Inventory(
        node=node.name, boot_id=boot_id, gpus=gpus, links=links, strategies=strategies, simulated=True, dra=node.dra
    )


def _uuid(name: str, index: int) -> str:
    digest = hashlib.blake2b(f"{name}/{index}".encode(), digest_size=16).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"
