"""The device nodes of a pod's network cards: what programs need for RDMA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from services.node_agent.cdi.host import Host
from services.node_agent.cdi.spec import ContainerEdits, DeviceNode
from shared.model.gpu import Nic

FOLDER = "/dev/infiniband"
CONNECTIONS = f"{FOLDER}/rdma_cm"
"""Connections by IP addresses; its module need not be loaded, and NCCL does not use it."""


def edits(host: Host, wanted: Iterable[str], nics: Mapping[str, Nic]) -> ContainerEdits:
    """The nodes for verbs of these cards, and the variable KERF_NICS. Empty without cards.

    Not `umad` and `issm`, with which a container could send management datagrams to the fabric, or be its subnet
    manager. Raises ValueError if a card is not there, or has no device node.
    """
    names = tuple(wanted)
    if not names:
        return ContainerEdits()
    nodes = tuple(_verbs(host, name, nics) for name in names)
    if host.seen(CONNECTIONS).exists():
        nodes += (DeviceNode(path=CONNECTIONS, permissions="rw"),)
    return ContainerEdits(env=(f"KERF_NICS={','.join(names)}",), device_nodes=nodes)


def _verbs(host: Host, name: str, nics: Mapping[str, Nic]) -> DeviceNode:
    nic = nics.get(name)
    if nic is None or not nic.verbs:
        raise ValueError(
            f"network card {name} of the grant is not there, or has no active port: bring it up, or delete the pod"
        )
    path = f"{FOLDER}/{nic.verbs}"
    if not host.seen(path).exists():
        raise ValueError(f"the host has no device node {path} for network card {name}; load the module ib_uverbs")
    return DeviceNode(path=path, permissions="rw")
