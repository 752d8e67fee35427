from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from shared.book.accepts import accepted
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model import names
from shared.model.request import PodRequest
from shared.scheduling.filters import gpu_remedies
from shared.scheduling.filters.base import Check, Filter
from shared.scheduling.filters.remedies import Remedy
from shared.scheduling.topology import Fabric, fabric_of, near_of
from shared.scheduling.topology.base import Near, largest_group, masks_of
from shared.scheduling.topology.fabric import places_of


class GpuTopology(Filter):
    """Whether a node's GPUs, if all were free, include a set that meets the topology request."""

    name = "gpu-topology"
    scope = "node"
    reads = ("request",)
    reads_node = ()
    remedies: ClassVar[Mapping[str, Remedy]] = {
        "no-peer-access": gpu_remedies.looser,
        "numa-nodes": gpu_remedies.looser,
    }

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        request = pod.request
        if request is None or not near_of(request):
            return None

        def check(node: NodeState) -> Reason | None:
            if node.inventory is None:
                return None
            wanted = accepted(request, node.inventory)
            places = sum(1 << room.column for room in node.gpus if room.uuid in wanted)
            return lacking_set(request, fabric_of(node.inventory), places, "on the node")

        return check


def lacking_set(request: PodRequest, fabric: Fabric, places: int, where: str) -> Reason | None:
    """Why these GPUs include no set for a container; None if they do, or are too few anyway."""
    near = near_of(request)
    if not near:
        return None
    for ask in request.asks.values():
        if ask.count < 2 or places.bit_count() < ask.count:
            continue
        group = largest_group(fabric, places, near)
        if group.bit_count() < ask.count:
            return _no_group(ask.count, group, fabric, places, near, where)
    return None


def _no_group(count: int, group: int, fabric: Fabric, places: int, near: Near, where: str) -> Reason:
    most, masks = group.bit_count(), masks_of(fabric, near)
    far = next((a, b) for a in places_of(places) for b in places_of(places & ~masks[a]) if a < b)
    a, b = (fabric.indices[place] for place in far)
    drop = f"drop {names.ANNOTATION_TOPOLOGY}: {'numa' if near == 'numa' else 'required'}"
    if near == "numa":
        sentence = (
            f"needs {count} GPUs on one NUMA node, {where} at most {most} are (GPU {a} and GPU {b} are on different "
            "ones)"
        )
    else:
        sentence = (
            f"needs {count} GPUs that all reach each other peer to peer, {where} at most {most} do (GPU {a} does "
            f"not reach GPU {b})"
        )
    return Reason(
        code="numa-nodes" if near == "numa" else "no-peer-access",
        sentence=sentence,
        helps=f"ask for at most {most} GPUs, or {drop}" if most > 1 else drop,
    )
