"""Which of several GPUs a pod gets that the policy in force cannot tell apart."""

from __future__ import annotations

from collections.abc import Iterable

from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.scheduling.numa import short_of_cpus
from shared.scheduling.topology import Choice, choose_gpus, fabric_of


def least_missed(
    best: GpuRoom, fitting: list[GpuRoom], rooms: list[GpuRoom], pod: PodState, node: NodeState
) -> GpuRoom:
    """Of the idle GPUs that the policy rates equal best, the one whose loss leaves the best NVLink rings; of these, and
    of shared GPUs in the same state, one beside enough CPUs."""
    if node.inventory is None:
        return best
    fabric = fabric_of(node.inventory)
    short = short_of_cpus(pod, node, node.inventory, fabric) if fabric.has_several_numa_nodes else 0
    if not best.idle:
        if not short >> best.column & 1:
            return best
        return next((room for room in fitting if _alike(room, best) and not short >> room.column & 1), best)
    if fabric.alike:
        return best
    equal = mask_of(
        room for room in fitting if room.total_mib == best.total_mib and room.model == best.model and room.idle
    )
    idle = mask_of(room for room in rooms if room.idle)
    places = choose_gpus(fabric, Choice(size=1, fitting=equal, idle=idle, short=short))
    return best if places is None else rooms[places[0]]


def ranks(ordered: list[GpuRoom], count: int) -> tuple[int, ...]:
    """The policy's order as a number for each position: GPUs in the same state share a number."""
    found = [0] * count
    numbers: dict[tuple[str, int, int, int, int], int] = {}
    for room in ordered:
        found[room.column] = numbers.setdefault(_state(room), len(numbers))
    return tuple(found)


def mask_of(rooms: Iterable[GpuRoom]) -> int:
    """The positions of these GPUs in their node's fabric."""
    mask = 0
    for room in rooms:
        mask |= 1 << room.column
    return mask


def _alike(a: GpuRoom, b: GpuRoom) -> bool:
    return a.mig is None and b.mig is None and _state(a) == _state(b)


def _state(room: GpuRoom) -> tuple[str, int, int, int, int]:
    return room.model, room.total_mib, room.free_mib, room.free_milli, room.containers
