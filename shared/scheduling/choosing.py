"""Chooses GPUs of one node for the containers of one pod. An order ranks the GPUs, and the pod's topology request
restricts them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import combinations
from typing import ClassVar, Protocol

from shared.book.shares import GpuRoom, fits, limits_on, share_on, strategy_for
from shared.book.states import NodeState, PodState
from shared.model.gpu import Inventory
from shared.model.grant import GpuShare
from shared.model.request import GpuAsk, PodRequest
from shared.scheduling import nics
from shared.scheduling.equal_gpus import least_missed, mask_of, ranks
from shared.scheduling.numa import short_of_cpus
from shared.scheduling.slowdown.outlook import instance_ask, quiet_rooms
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


class Chooser:
    """Chooses among GPUs of one node for the containers of one pod."""

    def __init__(
        self,
        pod: PodState,
        request: PodRequest,
        node: NodeState,
        inventory: Inventory,
        *,
        wanted: Container[str] | None,
        order: GpuOrder | None,
    ) -> None:
        self._pod, self._request, self._node, self._inventory = pod, request, node, inventory
        self._wanted, self._order = wanted, order

    def first(self, name: str, ask: GpuAsk, rooms: list[GpuRoom]) -> list[GpuRoom] | None:
        """The best GPUs for a container."""
        fitting = self._fitting(name, ask, rooms)
        near = nics.beside(fitting, self._node) if self._request.nics and not ask.profile else []
        chosen = None
        if len(near) >= ask.count:
            chosen = _choose(ask, near, rooms, self._pod, self._node, order=self._order)
        # A card beside the GPUs is a preference, and among those GPUs there may be none of the required topology.
        return chosen or _choose(ask, fitting, rooms, self._pod, self._node, order=self._order)

    def give(self, name: str, ask: GpuAsk, chosen: list[GpuRoom]) -> list[GpuShare]:
        """The container's shares of these GPUs."""
        shares = []
        for room in chosen:
            served = instance_ask(self._pod, name, ask, room) if self._pod.adaptive else ask
            shares.append(_share(ask, room, self._node.name, served))
        return shares

    def search(
        self, asks: Sequence[tuple[str, GpuAsk]], rooms: list[GpuRoom], steps: Iterator[int]
    ) -> Assignment | None:
        """Shares for all these containers; one choice after the other is tried for each, a step each."""
        if not asks:
            return {}
        (name, ask), *rest = asks
        for places in self._choices(name, ask, rooms):
            if next(steps, None) is None:
                return None
            left = [room.copy() for room in rooms]
            chosen = [left[place] for place in places]
            shares = self.give(name, ask, chosen)
            for room, share in zip(chosen, shares, strict=True):
                room.take(share.memory_mib, share.compute_milli)
            others = self.search(rest, left, steps)
            if others is not None:
                return {name: shares, **others}
        return None

    def _choices(self, name: str, ask: GpuAsk, rooms: list[GpuRoom]) -> Iterator[list[int]]:
        """Sets of GPUs for a container by their places among the rooms, good ones first."""
        place_of = {room.uuid: place for place, room in enumerate(rooms)}
        first = self.first(name, ask, rooms)
        if first is None:
            return
        yield [place_of[room.uuid] for room in first]
        if self._request.topology_mode or (ask.profile and ask.count > 1):
            return  # no other set is as good, or none is known
        fitting, order = self._fitting(name, ask, rooms), self._order
        ordered = _fullest_first(fitting) if order is None else order.order(self._pod, ask, fitting, self._node)
        for chosen in combinations(ordered, ask.count):
            yield [place_of[room.uuid] for room in chosen]

    def _fitting(self, name: str, ask: GpuAsk, rooms: Iterable[GpuRoom]) -> list[GpuRoom]:
        wanted = self._wanted
        found = [
            room for room in able(ask, self._request, self._inventory, rooms) if wanted is None or room.uuid in wanted
        ]
        return quiet_rooms(self._pod, name, ask, self._node, found) if self._pod.adaptive else found


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
