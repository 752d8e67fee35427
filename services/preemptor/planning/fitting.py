"""A fast pre-check whether a pod fits on a node, by its Node object and its GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shared.book.accepts import accepted
from shared.book.shares import GpuRoom, fits, share_on
from shared.book.states import NodeState, PodState
from shared.model.grant import GpuShare
from shared.model.mig import instance_mask
from shared.model.request import GpuAsk
from shared.model.selectors import node_selector_matches, untolerated

_EFFECTS = ("NoSchedule", "NoExecute")


def assign(state: PodState, node: NodeState, rooms: list[GpuRoom]) -> tuple[GpuShare, ...] | None:
    request, inventory = state.request, node.inventory
    if request is None or inventory is None:
        return None
    wanted = accepted(request, inventory)
    takes: list[GpuShare] = []
    for ask in sorted(request.asks.values(), key=lambda a: a.hardness, reverse=True):
        fitting = sorted(
            (room for room in rooms if room.uuid in wanted and fits(ask, room)),
            key=lambda r: (r.free_milli, r.free_mib, r.column),
        )
        chosen = (
            _instances(ask, fitting, node.name)
            if ask.profile
            else [_share(ask, room, node.name) for room in fitting[: ask.count]]
        )
        if len(chosen) < ask.count:
            return None
        takes += chosen
    return tuple(takes)


def _instances(ask: GpuAsk, fitting: Sequence[GpuRoom], node: str) -> list[GpuShare]:
    """Returns the MIG instances that are requested, or as many as fit; one GPU may provide several."""
    found: list[GpuShare] = []
    for room in fitting:
        while len(found) < ask.count and fits(ask, room):
            found.append(_share(ask, room, node))
    return found


def _share(ask: GpuAsk, room: GpuRoom, node: str) -> GpuShare:
    """Takes what one ask gets of a GPU on which it fits."""
    instance = None if room.mig is None else room.mig.take(ask, room.total_mib)
    memory_mib, compute_milli = (
        share_on(ask, room.total_mib)
        if room.mig is None or instance is None
        else room.mig.size_of(instance, room.total_mib)
    )
    room.take(memory_mib, compute_milli)
    return GpuShare(node=node, uuid=room.uuid, memory_mib=memory_mib, compute_milli=compute_milli, mig=instance)


def alike(members: Iterable[PodState]) -> list[list[PodState]]:
    """Groups members with equal requests and keeps their order: hundreds of members are examined once."""
    kinds: list[list[PodState]] = []
    for state in members:
        known = next((kind for kind in kinds if kind[0].request == state.request), None)
        if known is None:
            kinds.append([state])
        else:
            known.append(state)
    return kinds


def has_room(state: PodState, node: NodeState) -> bool:
    """Whether the pod's largest ask may fit in the capacity that is free now."""
    ask = None if state.request is None else state.request.hardest
    return (
        ask is not None
        and any(room.free_mib > 0 for room in node.gpus)
        and sum(fits(ask, room) for room in node.gpus) >= (1 if ask.profile else ask.count)
    )


def give(room: GpuRoom, share: GpuShare, *, ends: bool) -> None:
    if share.mig is not None and room.mig is not None:
        room.mig.granted &= ~instance_mask(room.mig.geometry, share.mig)
    room.free_mib += share.memory_mib
    room.free_milli += share.compute_milli
    room.containers -= ends


def take(room: GpuRoom, share: GpuShare) -> None:
    if share.mig is not None and room.mig is not None:
        room.mig.granted |= instance_mask(room.mig.geometry, share.mig)
    room.take(share.memory_mib, share.compute_milli)


def admits(state: PodState, node: NodeState) -> bool:
    """Whether the Node object admits the pod: taints, node selector, node affinity; not other pods."""
    if node.object is None or node.agent_trouble:
        return False
    spec, pod = node.object.spec, state.pod.spec
    if spec.unschedulable or untolerated(spec.taints, pod.tolerations, _EFFECTS) is not None:
        return False
    if any(node.object.metadata.labels.get(key) != value for key, value in pod.node_selector.items()):
        return False
    affinity = None if pod.affinity is None else pod.affinity.node_affinity
    return affinity is None or node_selector_matches(
        affinity.required_during_scheduling_ignored_during_execution, node.object
    )
