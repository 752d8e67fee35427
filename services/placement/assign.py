"""Which GPUs of one node a pod gets. Placement chose the node; the policy orders the node's GPUs."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import combinations

from services.placement.policies import POLICIES
from shared.book.shares import GpuRoom, fits, share_on
from shared.book.states import NodeState
from shared.model.gpu import Inventory
from shared.model.request import GpuAsk, PodRequest

Assignment = dict[str, list[tuple[str, int, int]]]
"""By container: (uuid, memory_mib, compute_milli) of each GPU."""

_MAX_SETS = 20_000


def assign(request: PodRequest, node: NodeState, policy: str) -> Assignment | None:
    """GPUs for every container, or None where they do not all fit. The largest ask chooses first."""
    rooms = node.gpus if len(request.asks) == 1 else [room.copy() for room in node.gpus]
    result: Assignment = {}
    for name, ask in sorted(request.asks.items(), key=lambda item: _size(item[1]), reverse=True):
        fitting = [r for r in rooms if fits(ask, r) and model_matches(r.model, request.models)]
        chosen = _choose(ask, fitting, request, node, policy)
        if chosen is None:
            return None
        result[name] = [(room.uuid, *share_on(ask, room.total_mib)) for room in chosen]
        if len(request.asks) > 1:
            for room in chosen:
                room.take(*share_on(ask, room.total_mib))
    return result


def _choose(ask: GpuAsk, fitting: list[GpuRoom], request: PodRequest, node: NodeState, policy: str) -> list[GpuRoom] | None:
    if len(fitting) < ask.count or node.inventory is None:
        return None
    if ask.count > 1 and request.topology == "required":
        return _peers(ask, fitting, node.inventory, policy)
    if ask.count > 1 and request.topology == "preferred":
        policy = "least-loaded-nearest"
    return POLICIES[policy].pick(ask, fitting, node.inventory)


def _peers(ask: GpuAsk, fitting: list[GpuRoom], inventory: Inventory, policy: str) -> list[GpuRoom] | None:
    """The policy's best among the sets whose members all reach each other peer to peer."""
    reach = {(link.a, link.b) for link in inventory.links if link.p2p}
    ordered = POLICIES[policy].order(ask, fitting)
    for tried, chosen in enumerate(combinations(ordered, ask.count)):
        if tried >= _MAX_SETS:
            return None
        if all((min(a.index, b.index), max(a.index, b.index)) in reach for a, b in combinations(chosen, 2)):
            return list(chosen)
    return None


@lru_cache(maxsize=4096)
def model_matches(model: str, wanted: tuple[str, ...]) -> bool:
    """Whether a GPU model is any of those wanted: whole words of its name, whatever the case, so that A10 is no A100.
    None wanted: any."""
    return not wanted or any(re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", model, re.IGNORECASE) for name in wanted)


def _size(ask: GpuAsk) -> tuple[bool, int, int, int]:
    return (ask.whole, ask.count, ask.memory_mib, ask.compute_milli)
