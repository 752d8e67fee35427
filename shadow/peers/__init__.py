"""The peers that are read. One line each; the first that has given a pod something tells what."""

from __future__ import annotations

from shadow.objects import SeenPod
from shadow.peers import hami, volcano
from shadow.peers.base import Device, Given, Part, Peer, Surroundings, Unreadable, inventory_of
from shadow.peers.hami import Hami
from shadow.peers.kai import Kai, groups_of, is_reservation, reservation
from shadow.peers.nvidia import Nvidia
from shadow.peers.volcano import Volcano
from shared.model.objects import Node

PEERS: tuple[Peer, ...] = (Hami(), Volcano(), Kai(), Nvidia())
"""NVIDIA's plugin comes last, for its resource stands in the pods of the others, too."""


NODE_ANNOTATIONS = (hami.REGISTER, volcano.REGISTER)
"""What is read of nodes' annotations."""


def devices_of(node: Node) -> tuple[Device, ...]:
    """The GPUs of a node, by the first peer that reports it. Raises Unreadable."""
    devices = next((found for peer in PEERS if (found := peer.devices(node)) is not None), ())
    try:
        inventory_of(node.metadata.name, devices)
    except ValueError as error:
        raise Unreadable(f"the GPUs of node {node.metadata.name} cannot be as it reports them: {error}") from None
    return devices


def given_to(pod: SeenPod, around: Surroundings) -> Given | None:
    """What a pod has been given. Raises Unreadable."""
    return next((found for peer in PEERS if (found := peer.given(pod, around)) is not None), None)


__all__ = [
    "NODE_ANNOTATIONS",
    "PEERS",
    "Device",
    "Given",
    "Part",
    "Peer",
    "Surroundings",
    "Unreadable",
    "devices_of",
    "given_to",
    "groups_of",
    "inventory_of",
    "is_reservation",
    "reservation",
]
