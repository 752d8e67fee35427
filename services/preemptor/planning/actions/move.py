"""Move: evicts a victim that fits on another node, and reserves capacity there for its replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.preemptor.planning.candidate import Candidate
from shared.book.states import NodeState, PodState


def find_targets(
    victims: Iterable[Candidate],
    pods: dict[str, PodState],
    nodes: Iterable[NodeState],
    taker: Callable[[PodState], Callable[[NodeState], bool]],
) -> dict[str, str]:
    """Returns the target node of each victim that can move, by uid.

    The victims that lose the most choose first.

    `nodes`: nodes that may have capacity which no plan counts on. `taker`: returns a check of nodes for a
    pod: whether it fits there; if so, the capacity is taken. Gang members do not move, because a gang is placed as a
    whole. Pods without a controller do not either, because nothing replaces them.
    """
    free = list(nodes)
    found: dict[str, str] = {}
    for victim in sorted((v for v in victims if v.action == "evict"), key=lambda v: v.price_gpu_ms, reverse=True):
        state = pods[victim.uid]
        if state.gang is not None or state.request is None or state.controller is None:
            continue
        node = next(filter(taker(state), free), None)
        if node is not None:
            found[victim.uid] = node.name
    return found
