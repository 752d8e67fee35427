"""Which GPUs of one node a pod gets, and by which strategy."""

from __future__ import annotations

from shared.book.accepts import accepted, has_gpu_constraints
from shared.book.shares import strategy_for, suspendable
from shared.book.states import NodeState, PodState
from shared.model.grant import ContainerGrant
from shared.model.request import OPPORTUNISTIC
from shared.model.strategies import MIG
from shared.scheduling.choosing import Assignment, Chooser, GpuOrder
from shared.scheduling.slowdown.outlook import strategy_on

STEPS_MOST = 64
"""Choices that are tried on a node for a pod with several containers, beside the first."""


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
    the GPUs with the least free capacity come first. Where that choice leaves a container without room, others are
    tried, `STEPS_MOST` at most."""
    request = pod.request
    if request is None or node.inventory is None:
        return None
    wanted = accepted(request, node.inventory) if has_gpu_constraints(request) else None
    chooser = Chooser(pod, request, node, node.inventory, wanted=wanted, order=order)
    asks = sorted(request.asks.items(), key=lambda item: item[1].hardness, reverse=True)
    if len(asks) == 1 and all(room.mig is None for room in node.gpus):  # nothing is taken, so no copies
        ((name, ask),) = asks
        chosen = chooser.first(name, ask, node.gpus)
        return None if chosen is None else {name: chooser.give(name, ask, chosen)}
    if len(asks) > 1 and any(chooser.first(name, ask, node.gpus) is None for name, ask in asks):
        return None  # no choice for the others helps
    return chooser.search(asks, node.gpus, iter(range(len(asks) + STEPS_MOST)))
