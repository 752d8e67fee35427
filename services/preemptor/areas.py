"""Where a plan may put its beneficiaries: all nodes, or, for a gang that must be in one domain of a topology level, each domain by
itself. Pure.

What placement would refuse is not planned: one that has begun stays where its members are, and a domain that could not hold all
of them were it empty is nobody's.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from services.preemptor.fitting import alike
from shared.book.accepts import accepted
from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.book.levels import begun_in, value_on
from shared.book.shares import GpuRoom, share_on
from shared.book.states import NodeState, PodState
from shared.model.gpu import Inventory
from shared.model.request import GpuAsk, PodRequest
from shared.model.units import WHOLE_GPU_MILLI

_PLENTY = 1 << 20
_MAX_INSTANCES = 8
"""A GPU in MIG mode has eight memory slices."""


class Area(msgspec.Struct, frozen=True):
    nodes: Sequence[NodeState]
    name: str = ""
    """The label's value; empty: all nodes."""


class Areas:
    """Of one round, on a book that stands still."""

    def __init__(self, book: Book, gangs: Gangs) -> None:
        self._book, self._gangs = book, gangs
        self._nodes = [node for _, node in sorted(book.nodes.items()) if node.gpus]
        self._by_label: dict[str, dict[str, list[NodeState]]] = {}

    def of(self, members: Sequence[PodState], closed: Container[str] = ()) -> list[Area]:
        """Those that could hold all of the members if nobody else were there. `closed`: nodes on which nothing is planned."""
        gang = self._gangs.of(members[0].uid)
        if gang is None or not gang.required:
            return [Area(self._nodes)]
        levels = self._level(gang.required)
        begun = sorted(begun_in(gang, self._book))
        found = [Area(nodes, value) for value, nodes in levels.items()]
        if begun:
            found = [Area([node for value in begun for node in levels.get(value, ())], "|".join(begun))]
        return [area for area in found if self._holds(area, members, closed)]

    def _level(self, label: str) -> dict[str, list[NodeState]]:
        if label not in self._by_label:
            found = self._by_label[label] = {}
            for node in self._nodes:
                if value := value_on(self._book, node.name, label):
                    found.setdefault(value, []).append(node)
        return self._by_label[label]

    def _holds(self, area: Area, members: Sequence[PodState], closed: Container[str]) -> bool:
        """Members that ask for the same are counted together; those who ask for something else are as if alone."""
        return all(
            _holds(area, kind[0].request, len(kind), closed) for kind in alike(members) if kind[0].request is not None
        )


def _holds(area: Area, request: PodRequest, count: int, closed: Container[str]) -> bool:
    room = 0
    for node in area.nodes:
        if node.inventory is not None and node.name not in closed:
            room += _room_for(request, node, node.inventory)
            if room >= count:
                return True
    return False


def _room_for(request: PodRequest, node: NodeState, inventory: Inventory) -> int:
    """How many such pods the node's GPUs would hold at most, with nobody on them."""
    wanted = accepted(request, inventory)
    rooms = [room for room in node.gpus if room.usable and room.uuid in wanted]
    return min((sum(_times(ask, room) for room in rooms) // ask.count for ask in request.asks.values()), default=0)


def _times(ask: GpuAsk, room: GpuRoom) -> int:
    if room.mig is not None or ask.profile:
        return _MAX_INSTANCES if room.mig is not None else 0
    memory_mib, compute_milli = share_on(ask, room.total_mib)
    by_memory = room.total_mib // memory_mib if memory_mib else _PLENTY
    return min(by_memory, WHOLE_GPU_MILLI // compute_milli if compute_milli else _PLENTY)
