"""Which GPUs of one node a pod gets. An order ranks the node's GPUs, and the pod's topology request restricts them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol

from shared.book.accepts import accepted, has_gpu_constraints
from shared.book.shares import GpuRoom, fits, limits_on, share_on, strategy_for, suspendable
from shared.book.states import NodeState, PodState
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, GpuShare
from shared.model.request import OPPORTUNISTIC, GpuAsk, PodRequest
from shared.model.strategies import MIG
from shared.scheduling import nics
from shared.scheduling.equal_gpus import least_missed, mask_of, ranks
from shared.scheduling.numa import short_of_cpus
from shared.scheduling.slowdown.outlook import instance_ask, quiet_rooms, strategy_on
from shared.scheduling.topology import Choice, choose_gpus, fabric_of, near_of
from shared.scheduling.topology.host import nearest_to_host

Assignment = dict[str, list[GpuShare]]
"""By container: its shares of GPUs."""


class GpuOrder(Protocol):
    """Ranks the GPUs of a node on which an ask fits (a placement policy does)."""

    picks_sets: ClassVar[bool]
    """Whether `pick` chooses several GPUs as a set, in a way of its own."""

    def order(self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState) -> list[GpuRoom]:
        """These GPUs, best first."""

    def pick(
        self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState, inventory: Inventory
    ) -> list[GpuRoom]:
        """The best `ask.count` of them."""


def containers_on(pod: PodState, node: NodeState, order: GpuOrder | None = None) -> dict[str, ContainerGrant] | None:
    """What each container of a pod gets on a node: GPUs, shares and strategy. None if they do not all fit; empty for a
    pod without GPUs."""
    request, inventory = pod.request, node.inventory
    if request is None:
        return {}
    chosen = assign(pod, node, order)
    if chosen is None or inventory is None:
        return None
    result = {}
    for name, gpus in chosen.items():
        opportunistic = request.tier == OPPORTUNISTIC
        shared = strategy_for(request.asks[name], request.isolation, inventory.strategies, opportunistic=opportunistic)
        if pod.adaptive and gpus[0].mig is None:
            on = [node.by_uuid[share.uuid] for share in gpus]
            shared = strategy_on(pod, name, request.asks[name], node, on) or shared
        if pod.takes_turns and request.asks[name].whole:
            shared = suspendable(request.isolation, inventory.strategies) or shared
        strategy = MIG if gpus[0].mig is not None else shared
        if strategy is None:
            return None
        result[name] = ContainerGrant(strategy=strategy, gpus=tuple(gpus))
    return result


def assign(pod: PodState, node: NodeState, order: GpuOrder | None = None) -> Assignment | None:
    """GPUs for every container, or None if they do not all fit. The largest request chooses first. Without an order
    the GPUs with the least free capacity come first."""
    request = pod.request
    if request is None or node.inventory is None:
        return None
    in_place = len(request.asks) == 1 and all(room.mig is None for room in node.gpus)  # nothing is taken, so no copies
    rooms = node.gpus if in_place else [room.copy() for room in node.gpus]
    wanted = accepted(request, node.inventory) if has_gpu_constraints(request) else None
    result: Assignment = {}
    for name, ask in sorted(request.asks.items(), key=lambda item: item[1].hardness, reverse=True):
        fitting = [r for r in able(ask, request, node.inventory, rooms) if wanted is None or r.uuid in wanted]
        if request.nics and not ask.profile and len(near := nics.beside(fitting, node)) >= ask.count:
            fitting = near
        if pod.adaptive:
            fitting = quiet_rooms(pod, name, ask, node, fitting)
        chosen = _choose(ask, fitting, rooms, pod, node, order=order)
        if chosen is None:
            return None
        result[name] = [
            _share(ask, room, node.name, instance_ask(pod, name, ask, room) if pod.adaptive else ask) for room in chosen
        ]
        if not in_place:
            for room, share in zip(chosen, result[name], strict=True):
                room.take(share.memory_mib, share.compute_milli)
    return result


def able(ask: GpuAsk, request: PodRequest, inventory: Inventory, rooms: Iterable[GpuRoom]) -> list[GpuRoom]:
    """The GPUs on which the request fits with the isolation it asks for: a MIG instance, or a strategy that the node
    offers."""
    shared = strategy_for(ask, request.isolation, inventory.strategies) is not None
    return [room for room in rooms if (room.mig is not None or shared) and fits(ask, room)]


def _share(ask: GpuAsk, room: GpuRoom, node: str, served: GpuAsk) -> GpuShare:
    """The share that a request gets of a GPU that it fits on. On a GPU in MIG mode this takes the instance that serves
    `served`."""
    if room.mig is None:
        memory_mib, compute_milli = share_on(ask, room.total_mib)
        memory_limit_mib, compute_limit_milli = limits_on(ask, room.total_mib)
        return GpuShare(
            node=node,
            uuid=room.uuid,
            memory_mib=memory_mib,
            compute_milli=compute_milli,
            memory_limit_mib=memory_limit_mib,
            compute_limit_milli=compute_limit_milli,
        )
    instance = room.mig.take(served, room.total_mib)
    if instance is None:
        raise ValueError(f"GPU {room.uuid} has no MIG instance for {ask}")
    memory_mib, compute_milli = room.mig.size_of(instance, room.total_mib)
    requested_mib, requested_milli = (0, 0) if ask.profile else share_on(ask, room.total_mib)
    return GpuShare(
        node=node,
        uuid=room.uuid,
        memory_mib=memory_mib,
        compute_milli=compute_milli,
        mig=instance,
        requested_mib=requested_mib,
        requested_milli=requested_milli,
    )


def _for_instances(ask: GpuAsk, ordered: Iterable[GpuRoom]) -> list[GpuRoom] | None:
    """The GPUs for several instances of one profile; a GPU may give several. The first GPUs are filled first."""
    found: list[GpuRoom] = []
    for room in ordered:
        left = room.copy()
        while len(found) < ask.count and left.mig is not None and left.mig.take(ask, left.total_mib) is not None:
            found.append(room)
    return found if len(found) == ask.count else None


def _choose(
    ask: GpuAsk, fitting: list[GpuRoom], rooms: list[GpuRoom], pod: PodState, node: NodeState, *, order: GpuOrder | None
) -> list[GpuRoom] | None:
    request, inventory = pod.request, node.inventory
    if ask.profile:
        return _for_instances(ask, _fullest_first(fitting) if order is None else order.order(pod, ask, fitting, node))
    if len(fitting) < ask.count or request is None or inventory is None:
        return None
    if request.topology == "host":
        ordered = _fullest_first(fitting) if order is None else order.order(pod, ask, fitting, node)
        return nearest_to_host(ordered, ask.count, inventory)
    near = near_of(request)
    if not request.topology_mode:
        if order is None and not near:
            return _fullest_first(fitting)[: ask.count]
        if order is not None and ask.count == 1:
            return [least_missed(order.pick(pod, ask, fitting, node, inventory)[0], fitting, rooms, pod, node)]
        if order is not None and order.picks_sets and not near:
            return order.pick(pod, ask, fitting, node, inventory)
    fabric = fabric_of(inventory)
    choice = Choice(
        size=ask.count,
        fitting=mask_of(fitting),
        idle=mask_of(room for room in rooms if room.idle),
        rank=() if ask.whole or order is None else ranks(order.order(pod, ask, fitting, node), len(rooms)),
        near=near if ask.count > 1 else "",
        short=short_of_cpus(pod, node, inventory, fabric),
    )
    places = choose_gpus(fabric, choice)
    return None if places is None else [rooms[place] for place in places]


def _fullest_first(fitting: list[GpuRoom]) -> list[GpuRoom]:
    return sorted(fitting, key=lambda room: (room.free_milli, room.free_mib, room.column))
