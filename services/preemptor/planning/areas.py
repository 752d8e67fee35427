"""Finds the sets of nodes where a plan may place its beneficiaries. Pure.

An area is all nodes, or, for a gang that must be in one domain of a topology level, one domain. Areas that placement
would refuse are left out: a gang that has placed members stays in their domain, and a domain that could not hold all
members if it were empty is no area.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from services.preemptor.planning.fitting import alike
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
    """The value of the topology label; empty for all nodes."""


class Areas:
    """The areas of one planning round, during which the book does not change."""

    def __init__(self, book: Book, gangs: Gangs) -> None:
        self._book, self._gangs = book, gangs
        self._all = [node for _, node in sorted(book.nodes.items())]
        self._with_gpus = [node for node in self._all if node.gpus]
        self._by_label: dict[tuple[str, bool], dict[str, list[NodeState]]] = {}

    def of(self, members: Sequence[PodState], closed: Container[str] = ()) -> list[Area]:
        """Returns the areas that could hold all members if they were empty. `closed`: nodes that are left out."""
        gang = self._gangs.of(members[0].uid)
        if gang is not None and any(one.required for one in gang.tree.all() if one.name):
            return []  # a plan looks at one domain for all members
        by_gpu = all(state.request is not None for state in members)
        if gang is None or not gang.required:
            return [Area(self._nodes(by_gpu=by_gpu))]
        levels = self._level(gang.required, by_gpu=by_gpu)
        begun = sorted(begun_in(gang, self._book))
        found = [Area(nodes, value) for value, nodes in levels.items()]
        if begun:
            found = [Area([node for value in begun for node in levels.get(value, ())], "|".join(begun))]
        return [area for area in found if self._holds(area, members, closed)]

    def _nodes(self, *, by_gpu: bool) -> list[NodeState]:
        """`by_gpu`: each member needs a GPU. Another one may run on a node without."""
        return self._with_gpus if by_gpu else self._all

    def _level(self, label: str, *, by_gpu: bool) -> dict[str, list[NodeState]]:
        if (label, by_gpu) not in self._by_label:
            found = self._by_label[label, by_gpu] = {}
            for node in self._nodes(by_gpu=by_gpu):
                if value := value_on(self._book, node.name, label):
                    found.setdefault(value, []).append(node)
        return self._by_label[label, by_gpu]

    def _holds(self, area: Area, members: Sequence[PodState], closed: Container[str]) -> bool:
        """Whether the area could hold the members. Groups with different requests are checked independently."""
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
    """Returns how many such pods the node's GPUs could hold at most if they were empty."""
    wanted = accepted(request, inventory)
    rooms = [room for room in node.gpus if room.usable and room.uuid in wanted]
    return min((sum(_times(ask, room) for room in rooms) // ask.count for ask in request.asks.values()), default=0)


def _times(ask: GpuAsk, room: GpuRoom) -> int:
    if room.mig is not None or ask.profile:
        return _MAX_INSTANCES if room.mig is not None else 0
    memory_mib, compute_milli = share_on(ask, room.total_mib)
    by_memory = room.total_mib // memory_mib if memory_mib else _PLENTY
    return min(by_memory, WHOLE_GPU_MILLI // compute_milli if compute_milli else _PLENTY)
