"""Which GPUs of one node a pod gets. The policy orders the node's GPUs, and the pod's topology request restricts
them."""

from __future__ import annotations

from collections.abc import Iterable

from services.placement.policies.base import Policy
from services.placement.topology import Choice, choose_gpus, fabric_of
from shared.book.accepts import accepted, has_gpu_constraints
from shared.book.shares import GpuRoom, fits, share_on, strategy_for
from shared.book.states import NodeState, PodState
from shared.model.gpu import Inventory
from shared.model.grant import GpuShare
from shared.model.request import GpuAsk, PodRequest

Assignment = dict[str, list[GpuShare]]
"""By container: its shares of GPUs."""

_BY_NEARNESS = "least-loaded-nearest"
"""The policy, if it chooses several GPUs in a way of its own."""


def assign(pod: PodState, node: NodeState, policy: Policy | None = None) -> Assignment | None:
    """GPUs for every container, or None if they do not all fit. The largest request chooses first. Without a policy any
    GPUs that fit are used."""
    request = pod.request
    if request is None or node.inventory is None:
        return None
    spare = len(request.asks) == 1 and all(room.mig is None for room in node.gpus)
    rooms = node.gpus if spare else [room.copy() for room in node.gpus]
    wanted = accepted(request, node.inventory) if has_gpu_constraints(request) else None
    result: Assignment = {}
    for name, ask in sorted(request.asks.items(), key=lambda item: item[1].hardness, reverse=True):
        fitting = [r for r in able(ask, request, node.inventory, rooms) if wanted is None or r.uuid in wanted]
        chosen = _choose(ask, fitting, rooms, pod, node, policy=policy)
        if chosen is None:
            return None
        result[name] = [_share(ask, room, node.name) for room in chosen]
        if not spare:
            for room, share in zip(chosen, result[name], strict=True):
                room.take(share.memory_mib, share.compute_milli)
    return result


def able(ask: GpuAsk, request: PodRequest, inventory: Inventory, rooms: Iterable[GpuRoom]) -> list[GpuRoom]:
    """The GPUs on which the request fits with the isolation it asks for: a MIG instance, or a strategy that the node
    offers."""
    shared = strategy_for(ask, request.isolation, inventory.strategies) is not None
    return [room for room in rooms if (room.mig is not None or shared) and fits(ask, room)]


def _share(ask: GpuAsk, room: GpuRoom, node: str) -> GpuShare:
    """The share that a request gets of a GPU that it fits on. On a GPU in MIG mode this takes the instance."""
    if room.mig is None:
        memory_mib, compute_milli = share_on(ask, room.total_mib)
        return GpuShare(node=node, uuid=room.uuid, memory_mib=memory_mib, compute_milli=compute_milli)
    instance = room.mig.take(ask, room.total_mib)
    if instance is None:
        raise ValueError(f"GPU {room.uuid} has no MIG instance for {ask}")
    memory_mib, compute_milli = room.mig.size_of(instance, room.total_mib)
    return GpuShare(node=node, uuid=room.uuid, memory_mib=memory_mib, compute_milli=compute_milli, mig=instance)


def _for_instances(ask: GpuAsk, ordered: Iterable[GpuRoom]) -> list[GpuRoom] | None:
    """The GPUs for several instances of one profile; a GPU may give several. The first GPUs are filled first."""
    found: list[GpuRoom] = []
    for room in ordered:
        left = room.copy()
        while len(found) < ask.count and left.mig is not None and left.mig.take(ask, left.total_mib) is not None:
            found.append(room)
    return found if len(found) == ask.count else None


def _choose(
    ask: GpuAsk, fitting: list[GpuRoom], rooms: list[GpuRoom], pod: PodState, node: NodeState, *, policy: Policy | None
) -> list[GpuRoom] | None:
    request, inventory = pod.request, node.inventory
    if ask.profile:
        return _for_instances(ask, fitting if policy is None else policy.order(pod, ask, fitting, node))
    if len(fitting) < ask.count or request is None or inventory is None:
        return None
    if not request.topology_mode:
        if policy is None and request.topology != "required":
            return fitting[: ask.count]
        if policy is not None and ask.count == 1:
            return [_least_missed(policy.pick(pod, ask, fitting, node, inventory)[0], fitting, rooms, inventory)]
        if policy is not None and policy.name == _BY_NEARNESS and request.topology != "required":
            return policy.pick(pod, ask, fitting, node, inventory)
    choice = Choice(
        size=ask.count,
        fitting=mask_of(fitting),
        idle=mask_of(room for room in rooms if room.idle),
        rank=() if ask.whole or policy is None else _ranks(policy.order(pod, ask, fitting, node), len(rooms)),
        peers=request.topology == "required" and ask.count > 1,
    )
    places = choose_gpus(fabric_of(inventory), choice)
    return None if places is None else [rooms[place] for place in places]


def _least_missed(best: GpuRoom, fitting: list[GpuRoom], rooms: list[GpuRoom], inventory: Inventory) -> GpuRoom:
    """Of the idle GPUs that the policy rates equal best, the one whose loss leaves the best NVLink rings."""
    fabric = fabric_of(inventory)
    if fabric.alike or not best.idle:
        return best
    equal = mask_of(
        room for room in fitting if room.total_mib == best.total_mib and room.model == best.model and room.idle
    )
    places = choose_gpus(fabric, Choice(size=1, fitting=equal, idle=mask_of(room for room in rooms if room.idle)))
    return best if places is None else rooms[places[0]]


def mask_of(rooms: Iterable[GpuRoom]) -> int:
    """The positions of these GPUs in their node's fabric."""
    mask = 0
    for room in rooms:
        mask |= 1 << room.column
    return mask


def _ranks(ordered: list[GpuRoom], count: int) -> tuple[int, ...]:
    """The policy's order as a number for each position: GPUs in the same state share a number."""
    ranks = [0] * count
    numbers: dict[tuple[str, int, int, int, int], int] = {}
    for room in ordered:
        state = (room.model, room.total_mib, room.free_mib, room.free_milli, room.containers)
        ranks[room.column] = numbers.setdefault(state, len(numbers))
    return tuple(ranks)
