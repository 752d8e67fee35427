"""How the GPUs of a node reach each other, as small matrices over their places (0, 1, … in the order of NVML's index).

Nodes of one kind share one Fabric, so what has been worked out for one of them holds for all. Sets of GPUs are bit
masks over places.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

import msgspec

from shared.model.gpu import Gpu, Inventory, Link, Nic
from shared.scheduling.topology.bandwidth import pair_mb_s, pair_score

_NEAR = ("internal", "single", "multiple")
"""A card behind the same PCIe switch, or switches, carries a GPU's traffic without passing the CPU."""
_ACROSS = Link(a=0, b=0, p2p=False)
_MOST_NODES = 1 << 16


class Kind(msgspec.Struct, frozen=True):
    """What makes two nodes' fabrics the same."""

    gpus: tuple[tuple[int, str, str, int, bool], ...]
    """index, model, compute capability, NUMA node, C2C"""
    links: tuple[Link, ...]
    nics: tuple[tuple[int, ...], ...]
    """By card the indices of the GPUs near it."""


class Fabric:
    """`mb_s[a][b]`: one-way bandwidth between two positions. `score[a][b]`: go-gpuallocator's pair score. `peers[a]`:
    the mask of positions that `a` reaches peer to peer, `same_numa[a]`: of the others on its NUMA node. `twins[a]`: the
    same number for positions that can be swapped without changing anything. `memo`: a cache for derived results; it
    lives as long as the fabric."""

    def __init__(self, kind: Kind) -> None:
        gpus = [
            Gpu(uuid="-", index=i, model=m, memory_mib=0, compute_capability=c, numa_node=n, c2c=x)
            for i, m, c, n, x in kind.gpus
        ]
        links = {(link.a, link.b): link for link in kind.links} | {(link.b, link.a): link for link in kind.links}
        between = [[links.get((a.index, b.index), _ACROSS) for b in gpus] for a in gpus]
        places = range(len(gpus))
        self.count = len(gpus)
        self.indices = tuple(gpu.index for gpu in gpus)
        self.numa = tuple(gpu.numa_node for gpu in gpus)
        self.has_several_numa_nodes = len(set(self.numa)) > 1
        self.mb_s = tuple(
            tuple(0 if a == b else pair_mb_s(gpus[a], gpus[b], between[a][b]) for b in places) for a in places
        )
        self.score = tuple(tuple(0 if a == b else pair_score(between[a][b]) for b in places) for a in places)
        self.same_numa = tuple(sum(1 << b for b in places if b != a and self.numa[a] == self.numa[b]) for a in places)
        self.peers = tuple(sum(1 << b for b in places if b != a and between[a][b].p2p) for a in places)
        self.cards = tuple(sum(1 << card for card, near in enumerate(kind.nics) if gpu.index in near) for gpu in gpus)
        self.levels = tuple(sorted({self.mb_s[a][b] for a, b in combinations(places, 2)}, reverse=True))
        """The bandwidths that occur, the highest first."""
        self.reach = {
            level: tuple(sum(1 << b for b in places if b != a and self.mb_s[a][b] >= level) for a in places)
            for level in self.levels
        }
        """By bandwidth and place, the mask of places that are at least so near."""
        self.twins = self._twins()
        self.alike = len(set(self.twins)) <= 1
        """All its GPUs are twins: any set is as good as any other of its size."""
        self.memo: dict[tuple[object, ...], object] = {}

    def _twins(self) -> tuple[int, ...]:
        classes: list[int] = []
        for place in range(self.count):
            classes.append(next((classes[other] for other in range(place) if self._swappable(other, place)), place))
        return tuple(classes)

    def _swappable(self, a: int, b: int) -> bool:
        others = [p for p in range(self.count) if p not in (a, b)]
        return (
            self.numa[a] == self.numa[b]
            and all(
                self.mb_s[a][p] == self.mb_s[b][p]
                and self.score[a][p] == self.score[b][p]
                and self._peer(a, p) == self._peer(b, p)
                for p in others
            )
            and (
                self.cards[a] == self.cards[b]
                or (
                    self._own_cards(a) and self._own_cards(b) and self.cards[a].bit_count() == self.cards[b].bit_count()
                )
            )
        )

    def _peer(self, a: int, b: int) -> bool:
        return bool(self.peers[a] >> b & 1)

    def _own_cards(self, a: int) -> bool:
        return not any(self.cards[a] & self.cards[p] for p in range(self.count) if p != a)


def places_of(mask: int) -> tuple[int, ...]:
    """The places in a mask, lowest first."""
    return tuple(place for place in range(mask.bit_length()) if mask >> place & 1)


_of_node: dict[str, tuple[Inventory, Fabric]] = {}


def fabric_of(inventory: Inventory) -> Fabric:
    """The fabric of a node as its agent reported it. A matter of nanoseconds as long as the inventory stays the
    same."""
    known = _of_node.get(inventory.node)
    if known is not None and known[0] is inventory:
        return known[1]
    if len(_of_node) >= _MOST_NODES:
        _of_node.clear()
    fabric = _fabric(_kind(inventory))
    _of_node[inventory.node] = (inventory, fabric)
    return fabric


_fabric = lru_cache(maxsize=512)(Fabric)


def _kind(inventory: Inventory) -> Kind:
    gpus = sorted(inventory.gpus, key=lambda g: g.index)
    return Kind(
        tuple((g.index, g.model, g.compute_capability, g.numa_node, g.c2c) for g in gpus),
        tuple(sorted(inventory.links, key=lambda link: (link.a, link.b))),
        tuple(sorted(filter(None, (_near(nic) for nic in inventory.nics)))),
    )


def _near(nic: Nic) -> tuple[int, ...]:
    return tuple(sorted(index for index, level in nic.pcie.items() if level in _NEAR))
