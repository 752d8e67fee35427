from __future__ import annotations

from math import log10

from services.placement.scores.base import ClusterScore, Rate
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.scheduling.choosing import able
from shared.scheduling.topology.host import nearest_to_host, numa_nodes, slower_mb_s

_SLOW_MB_S, _DECADES = 1_000, 3
"""1 GB/s and less is 0 points, 1 TB/s is 1000, each factor of ten the same number of points."""
_A_NUMA_NODE = 20
"""Points that each further NUMA node costs: as much as a link that is 13 % slower."""


class HostBandwidth(ClusterScore):
    """kerf.dev/topology: host: the node whose GPUs exchange data with their host fastest, by what its agent measured.

    Each node has figures of its own, so nodes of one class are not equal here; it is prepared for such pods only.
    """

    name = "host-bandwidth"
    weight = 100

    def prepare(self, pod: PodState, book: Book) -> Rate | None:
        request = pod.request
        if request is None or request.topology != "host":
            return None
        ask = request.hardest

        def rate(node: NodeState) -> int:
            if node.inventory is None:
                return 0
            fitting = able(ask, request, node.inventory, node.gpus)
            if len(fitting) < ask.count:
                return 0
            chosen = nearest_to_host(fitting, ask.count, node.inventory)
            names = {room.uuid for room in chosen}
            mb_s = min(slower_mb_s(gpu) for gpu in node.inventory.gpus if gpu.uuid in names)
            points = int(1000 * log10(max(mb_s, _SLOW_MB_S) / _SLOW_MB_S) / _DECADES)
            return max(0, min(1000, points) - _A_NUMA_NODE * (numa_nodes(chosen, node.inventory) - 1))

        return rate
