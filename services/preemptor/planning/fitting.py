"""A fast check whether a pod fits on a node as it stands: the filters of single nodes, and assignment of GPUs. Pure.

Placement also runs the filters that depend on other pods and other objects, and refuses a plan that breaks one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from shared.book.book import Book
from shared.book.shares import GpuRoom, fits
from shared.book.states import NodeState, PodState
from shared.model.grant import Grant
from shared.scheduling.assignment import containers_on
from shared.scheduling.filters import filters
from shared.scheduling.filters.resources import Resources


def admits(state: PodState, book: Book) -> Callable[[NodeState], bool]:
    """Returns a check of nodes: whether a pod could be placed there if the node were empty."""
    checks = [check for one in filters().node if (check := one.prepare(state, book)) is not None]
    return lambda node: all(check(node) is None for check in checks)


def fit(state: PodState, book: Book, node_name: str) -> Grant | None:
    """Returns the grant that a pod would get on a node as it stands; None if it does not fit."""
    node = book.nodes[node_name]
    if Resources().prepare(state, book)(node) is not None:
        return None
    containers = containers_on(state, node)
    return None if containers is None else Grant(grant_id=f"plan/{state.uid}", term=0, containers=containers)


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


def has_host_room(state: PodState, node: NodeState) -> bool:
    """Whether the node has the CPU and memory that a pod without GPUs needs: a quick look at thousands of nodes."""
    return (
        state.demand.cpu_milli <= node.cpu_total - node.cpu_used
        and state.demand.memory_bytes <= node.memory_total - node.memory_used
    )


def has_room(state: PodState, node: NodeState) -> bool:
    """Whether the pod's largest ask may fit in the capacity that is free now."""
    return has_room_on(state, node.gpus)


def has_room_on(state: PodState, gpus: Sequence[GpuRoom]) -> bool:
    """The same with the GPUs of a node as they are, or would be."""
    ask = None if state.request is None else state.request.hardest
    return (
        ask is not None
        and any(room.free_mib > 0 for room in gpus)
        and sum(fits(ask, room) for room in gpus) >= (1 if ask.profile else ask.count)
    )
