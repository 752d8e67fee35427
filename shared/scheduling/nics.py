"""Network cards beside the GPUs: which of a node's cards are free, and which a pod gets. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import get_args

from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.model.gpu import Inventory, Nic, PcieLevel
from shared.model.grant import ContainerGrant

_RANK = {level: rank for rank, level in enumerate(get_args(PcieLevel))}
_BEHIND_ONE_SWITCH = _RANK["single"]
"""`single` and nearer: traffic between card and GPU stays below one PCIe switch."""


def rdma(inventory: Inventory) -> tuple[Nic, ...]:
    """The cards of a node that pods may be given."""
    return tuple(nic for nic in inventory.nics if nic.verbs)


def given(node: NodeState) -> Counter[str]:
    """How many grants have each card, decided or bound, until the node has released them."""
    return Counter(name for held in node.grants.values() if held.node == node.name for name in held.given.nics)


def free(node: NodeState) -> list[Nic]:
    """The cards that another pod may be given, in the order of their names."""
    if node.inventory is None:
        return []
    taken = given(node)
    return [nic for nic in rdma(node.inventory) if taken[nic.name] < nic.pods]


def beside(rooms: Iterable[GpuRoom], node: NodeState) -> list[GpuRoom]:
    """Of these GPUs those that have a free card behind their own PCIe switch."""
    cards = free(node)
    return [room for room in rooms if any(_rank(nic, room.index) <= _BEHIND_ONE_SWITCH for nic in cards)]


def cards_for(pod: PodState, containers: Iterable[ContainerGrant], node: NodeState) -> tuple[str, ...] | None:
    """The names of the cards that a pod gets beside these GPUs; None if too few are free."""
    wanted = 0 if pod.request is None else pod.request.nics
    return nearest(wanted, containers, node) if wanted else ()


def nearest(count: int, containers: Iterable[ContainerGrant], node: NodeState) -> tuple[str, ...] | None:
    """The names of `count` free cards that are nearest to the GPUs of these containers; None if fewer are free.

    One after the other: the card that is nearest to a GPU which no chosen card is near to, of equal ones that which is
    nearer to all GPUs, which fewer pods have, and the first by name.
    """
    cards, taken = free(node), given(node)
    if len(cards) < count:
        return None
    uuids = {share.uuid for container in containers for share in container.gpus}
    indices = {room.index for room in node.gpus if room.uuid in uuids}
    left, chosen = set(indices), list[str]()
    while len(chosen) < count:
        costs = {
            nic.name: (_nearest(nic, left or indices), sum(_rank(nic, i) for i in indices), taken[nic.name], nic.name)
            for nic in cards
            if nic.name not in chosen
        }
        best = next(nic for nic in cards if nic.name == min(costs, key=costs.__getitem__))
        near = _nearest(best, left)
        left -= {index for index in left if _rank(best, index) == near}
        chosen.append(best.name)
    return tuple(sorted(chosen))


def _nearest(nic: Nic, indices: Iterable[int]) -> int:
    return min((_rank(nic, index) for index in indices), default=0)


def _rank(nic: Nic, index: int) -> int:
    return _RANK[nic.pcie.get(index, "system")]
