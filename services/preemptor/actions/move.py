"""Who has to go, and has room elsewhere, moves: it is evicted, and a place is kept for the pod that its controller makes anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.preemptor.candidate import Candidate
from shared.book.states import NodeState, PodState


def elsewhere(
    victims: Iterable[Candidate],
    pods: dict[str, PodState],
    nodes: Iterable[NodeState],
    take: Callable[[PodState, NodeState], bool],
) -> dict[str, str]:
    """The node for each that moves, by uid, those who lose the most first. `nodes`: where there may be room that nobody counts on.
    `take`: whether it fits there, and then nobody else gets that room. Members of gangs come again as a whole, and whom nobody
    makes anew does not come."""
    free = list(nodes)
    found: dict[str, str] = {}
    for victim in sorted((v for v in victims if v.action == "evict"), key=lambda v: v.price_gpu_ms, reverse=True):
        state = pods[victim.uid]
        if state.gang is not None or state.request is None or state.controller is None:
            continue
        node = next((node for node in free if take(state, node)), None)
        if node is not None:
            found[victim.uid] = node.name
    return found
