"""Hollow nodes: the GPUs and containers of simulated nodes. Pure.

The containers do no work: they start as soon as they have their share, and end as soon as they have to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from shared.model.gpu import Gpu, HostMemory, Inventory, Link
from shared.model.gpu_models import known_model
from shared.model.grant import ContainerGrant
from shared.model.hollow_node import HollowNode
from shared.model.strategies import ALWAYS_OFFERED, MIG, PROVEN_BY_CANARY, registered
from shared.ports.machine import Machine


def machines(nodes: Iterable[HollowNode], boot_id: str) -> dict[str, Machine]:
    """The nodes by name. `boot_id` is new at each start: no container of an earlier start runs."""
    return {node.name: HollowMachine(node, boot_id) for node in nodes}


class HollowMachine:
    """A Machine whose containers do no work."""

    def __init__(self, node: HollowNode, boot_id: str) -> None:
        self._node, self._boot_id = node, boot_id
        self._ended: list[tuple[str, str]] = []

    @property
    def inventory(self) -> Inventory:
        return inventory_of(self._node, self._boot_id)

    def start(self, uid: str, container: str, grant_id: str, share: ContainerGrant) -> None:
        """Nothing runs."""

    def stop(self, uid: str, container: str, now: float) -> None:
        self._ended.append((uid, container))

    def take_ended(self, now: float) -> Sequence[tuple[str, str]]:
        if not self._ended:
            return ()
        ended, self._ended = self._ended, []
        return ended


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
        *ALWAYS_OFFERED,
        *((name for name in PROVEN_BY_CANARY if registered()[name].promise != "hard") if node.firm else ()),
        *((MIG,) if node.mig else ()),
    )
    return Inventory(
        node=node.name,
        boot_id=boot_id,
        gpus=gpus,
        links=links,
        strategies=strategies,
        simulated=True,
        dra=node.dra,
        remote=node.remote,
        host_memory=HostMemory(park_mib=sum(gpu.memory_mib for gpu in gpus)),
    )


def _uuid(name: str, index: int) -> str:
    digest = hashlib.blake2b(f"{name}/{index}".encode(), digest_size=16).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"
