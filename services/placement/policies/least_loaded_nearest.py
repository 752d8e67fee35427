from __future__ import annotations

from services.placement.policies.spread import Spread
from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.model.gpu import Inventory, Link
from shared.model.request import GpuAsk

_PCIE_NEARNESS = {"internal": 6, "single": 5, "multiple": 4, "hostbridge": 3, "node": 2, "system": 1}


class LeastLoadedNearest(Spread):
    """Several GPUs by affinity and load: the least-loaded GPU first, then repeatedly the least-loaded among those
    nearest to the chosen ones (NVLinks first, then PCIe distance)."""

    name = "least-loaded-nearest"
    picks_sets = True

    def pick(
        self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState, inventory: Inventory
    ) -> list[GpuRoom]:
        links = {(link.a, link.b): link for link in inventory.links}
        waiting = self.order(pod, ask, fitting, node)
        chosen = [waiting.pop(0)]
        while len(chosen) < ask.count:
            # min() keeps the first of equals, and `waiting` is in order of load
            nearest = min(waiting, key=lambda room: (-_nearness(room, chosen, links), room.containers))
            waiting.remove(nearest)
            chosen.append(nearest)
        return chosen


def _nearness(room: GpuRoom, chosen: list[GpuRoom], links: dict[tuple[int, int], Link]) -> int:
    """To the farthest of those chosen: a set is as good as its weakest link."""
    return min(_between(links.get((min(room.index, c.index), max(room.index, c.index)))) for c in chosen)


def _between(link: Link | None) -> int:
    if link is None:
        return 0
    return 10 * link.nvlinks + _PCIE_NEARNESS[link.pcie]
