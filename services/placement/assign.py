"""Which GPUs of one node a pod gets. Placement chose the node; the policy orders its GPUs, and the topology has a say."""

from __future__ import annotations

from collections.abc import Iterable

from services.placement.accepts import accepted, picky
from services.placement.policies import POLICIES
from services.placement.topology import DEFAULT_MODE, MODES, Choice, fabric_of
from shared.book.shares import GpuRoom, fits, share_on
from shared.book.states import NodeState
from shared.model.gpu import Inventory
from shared.model.request import GpuAsk, PodRequest
from shared.model.units import WHOLE_GPU_MILLI

Assignment = dict[str, list[tuple[str, int, int]]]
"""By container: (uuid, memory_mib, compute_milli) of each GPU."""

_BY_NEARNESS = "least-loaded-nearest"
"""The policy that chooses several GPUs in a way of its own."""


def assign(request: PodRequest, node: NodeState, policy: str) -> Assignment | None:
    """GPUs for every container, or None where they do not all fit. The largest ask chooses first."""
    if node.inventory is None:
        return None
    rooms = node.gpus if len(request.asks) == 1 else [room.copy() for room in node.gpus]
    wanted = accepted(request, node.inventory) if picky(request) else None
    result: Assignment = {}
    for name, ask in sorted(request.asks.items(), key=lambda item: _size(item[1]), reverse=True):
        fitting = [r for r in rooms if fits(ask, r) and (wanted is None or r.uuid in wanted)]
        chosen = _choose(ask, fitting, rooms, request, node.inventory, policy=policy)
        if chosen is None:
            return None
        result[name] = [(room.uuid, *share_on(ask, room.total_mib)) for room in chosen]
        if len(request.asks) > 1:
            for room in chosen:
                room.take(*share_on(ask, room.total_mib))
    return result


def _choose(
    ask: GpuAsk, fitting: list[GpuRoom], rooms: list[GpuRoom], request: PodRequest, inventory: Inventory, *, policy: str
) -> list[GpuRoom] | None:
    if ask.profile:
        return _for_instances(ask, POLICIES[policy].order(ask, fitting))
    if len(fitting) < ask.count:
        return None
    if not request.topology_mode:
        if ask.count == 1:
            return [_least_missed(POLICIES[policy].pick(ask, fitting, inventory)[0], fitting, rooms, inventory)]
        if policy == _BY_NEARNESS and request.topology != "required":
            return POLICIES[policy].pick(ask, fitting, inventory)
    choice = Choice(
        size=ask.count, fitting=mask_of(fitting), idle=mask_of(room for room in rooms if is_idle(room)),
        rank=() if ask.whole else _ranks(POLICIES[policy].order(ask, fitting), len(rooms)), peers=request.topology == "required" and ask.count > 1,
    )  # fmt: skip
    places = MODES[request.topology_mode or DEFAULT_MODE].choose(fabric_of(inventory), choice)
    return None if places is None else [rooms[place] for place in places]


def _least_missed(best: GpuRoom, fitting: list[GpuRoom], rooms: list[GpuRoom], inventory: Inventory) -> GpuRoom:
    """Among the idle GPUs that are in nothing less than the policy's best the one whose loss leaves the best rings."""
    fabric = fabric_of(inventory)
    if fabric.alike or not is_idle(best):
        return best
    equal = mask_of(room for room in fitting if room.total_mib == best.total_mib and room.model == best.model and is_idle(room))
    places = MODES[DEFAULT_MODE].choose(fabric, Choice(size=1, fitting=equal, idle=mask_of(room for room in rooms if is_idle(room))))
    return best if places is None else rooms[places[0]]


def is_idle(room: GpuRoom) -> bool:
    """Usable, and nothing at all is on it."""
    return room.usable and room.containers == 0 and room.free_mib == room.total_mib and room.free_milli == WHOLE_GPU_MILLI


def mask_of(rooms: Iterable[GpuRoom]) -> int:
    """The places of these in their node's fabric."""
    mask = 0
    for room in rooms:
        mask |= 1 << room.column
    return mask


def _ranks(ordered: list[GpuRoom], count: int) -> tuple[int, ...]:
    """The policy's order as numbers by place: GPUs in the same state share one."""
    ranks = [0] * count
    numbers: dict[tuple[str, int, int, int, int], int] = {}
    for room in ordered:
        state = (room.model, room.total_mib, room.free_mib, room.free_milli, room.containers)
        ranks[room.column] = numbers.setdefault(state, len(numbers))
    return tuple(ranks)


def _size(ask: GpuAsk) -> tuple[bool, int, int, int]:
    return (ask.whole, ask.count, ask.memory_mib, ask.compute_milli)
