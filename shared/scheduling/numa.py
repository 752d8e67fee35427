"""CPUs beside GPUs: which GPUs' NUMA nodes have no CPUs left for a pod. Pure."""

from __future__ import annotations

from functools import lru_cache

from shared.book.states import NodeState, PodState
from shared.model.gpu import Inventory
from shared.scheduling.topology.fabric import Fabric


def short_of_cpus(pod: PodState, node: NodeState, inventory: Inventory, fabric: Fabric) -> int:
    """The mask of GPUs whose NUMA node has fewer CPUs left than the pod requests; 0 where that prefers none to others.

    Counted are the requests of pods with GPUs there: their CPUs are taken beside their GPUs, of pods with GPUs on
    several NUMA nodes the same part of each. Where pods without GPUs run is not known.
    """
    wanted = pod.demand.cpu_milli
    if not wanted or not fabric.has_several_numa_nodes:
        return 0
    left = dict(_cpus_milli(tuple((gpu.numa_node, gpu.cpus) for gpu in inventory.gpus)))
    if len(left) < 2:
        return 0
    taken = node.cpus.taken_milli
    left = {place: offered - taken.get(place, 0) for place, offered in left.items()}
    if min(left.values()) >= wanted:
        return 0
    short = sum(1 << place for place, at in enumerate(fabric.numa) if left.get(at, wanted) < wanted)
    return 0 if short == (1 << fabric.count) - 1 else short


@lru_cache(maxsize=512)
def _cpus_milli(gpus: tuple[tuple[int, str], ...]) -> tuple[tuple[int, int], ...]:
    """By NUMA node, how many thousandths of CPUs are beside its GPUs, as the node's agent reports them."""
    return tuple({node: 1000 * _count(cpus) for node, cpus in gpus if node >= 0 and cpus}.items())


def _count(cpus: str) -> int:
    """The number of CPUs in a list such as "0-31,64-95"."""
    runs = (run.partition("-") for run in cpus.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in runs)
