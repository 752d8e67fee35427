"""Computes what it costs at least to evict all pods from some of a node's GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from services.preemptor.planning.candidate import Candidate, Last
from shared.book.shares import GpuRoom
from shared.book.states import NodeState
from shared.model.units import WHOLE_GPU_MILLI

_PARTS = 840
"""Parts of a pod: the number divides evenly over as many GPUs as a node has."""


class EmptyingCost(NamedTuple):
    """The cost of evicting all pods from a GPU, and the capacity that they return there.

    A pod with several GPUs counts in part on each.
    """

    priority: int
    least_gpu_ms: int
    price_gpu_ms: int
    gpu_milli: int
    pods: int
    """The number of pods times `_PARTS`."""
    last: Last
    memory_mib: int
    compute_milli: int

    @property
    def figures(self) -> tuple[int, int, int, int, Last]:
        """Priority, GPU-ms, GPU milli, pods, and the newest pod."""
        return (
            self.priority,
            max(self.least_gpu_ms, self.price_gpu_ms),
            self.gpu_milli,
            -(-self.pods // _PARTS),
            self.last,
        )


NOTHING = EmptyingCost(-(1 << 31), 0, 0, 0, 0, Last(("~", "~")), 0, 0)


def costs_by_gpu(candidates: Iterable[Candidate]) -> dict[str, EmptyingCost]:
    """Returns the cost by GPU uuid, counting the candidates that may be evicted."""
    found: dict[str, EmptyingCost] = {}
    for c in candidates:
        if not c.is_evictable:
            continue
        uuids = {share.uuid for share in c.shares}
        parts = max(1, len(uuids))
        for uuid in uuids:
            have = found.get(uuid, NOTHING)
            found[uuid] = EmptyingCost(
                max(have.priority, c.priority),
                max(have.least_gpu_ms, c.least_gpu_ms),
                have.price_gpu_ms + c.price_gpu_ms // parts,
                have.gpu_milli + c.gpu_milli // parts,
                have.pods + _PARTS // parts,
                max(have.last, c.last),
                have.memory_mib + sum(share.memory_mib for share in c.shares if share.uuid == uuid),
                have.compute_milli + sum(share.compute_milli for share in c.shares if share.uuid == uuid),
            )
    return found


def min_emptying_costs(count: int, node: NodeState, costs_of: Mapping[str, EmptyingCost]) -> list[EmptyingCost]:
    """Returns the minimum cost of emptying `count` GPUs of a node, then of `count` more, and so on.

    No `count` GPUs cost less than the first element, and no `2 * count` GPUs less than the first two together.
    """
    gpus = [costs for room in node.gpus if (costs := _cost_if_emptied(room, costs_of)) is not None]
    columns = [sorted(column) for column in zip(*gpus, strict=True)]
    return [_sum(columns, at, at + count) for at in range(0, len(gpus) - count + 1, count)]


def min_emptying_cost(count: int, node: NodeState, costs_of: Mapping[str, EmptyingCost]) -> EmptyingCost | None:
    """Returns a lower bound of the cost of emptying `count` GPUs of a node; None if so many cannot be emptied.

    It is closer than the first of `min_emptying_costs`: a GPU with a pod of higher priority than must be evicted counts
    nowhere. Otherwise each node with one cheap pod of high priority would have to be examined.
    """
    gpus = [costs for room in node.gpus if (costs := _cost_if_emptied(room, costs_of)) is not None]
    if len(gpus) < count:
        return None
    highest = sorted(costs.priority for costs in gpus)[count - 1]
    columns = [sorted(column) for column in zip(*(c for c in gpus if c.priority <= highest), strict=True)]
    return _sum(columns, 0, count)


def min_total(parts: Sequence[EmptyingCost], count: int) -> EmptyingCost | None:
    """Returns a lower bound of the cost of any `count` of these; None if there are fewer."""
    return None if len(parts) < count else _sum([sorted(column) for column in zip(*parts, strict=True)], 0, count)


def _sum(columns: Sequence[Sequence[Any]], begin: int, end: int) -> EmptyingCost:
    """Combines each figure by itself: the maximum of priority, `least_gpu_ms` and `last`, else the sum."""
    priority, least, price, milli, pods, last, memory, compute = columns
    return EmptyingCost(
        priority[end - 1],
        least[end - 1],
        sum(price[begin:end]),
        sum(milli[begin:end]),
        sum(pods[begin:end]),
        last[end - 1],
        sum(memory[begin:end]),
        sum(compute[begin:end]),
    )


def _cost_if_emptied(room: GpuRoom, costs_of: Mapping[str, EmptyingCost]) -> EmptyingCost | None:
    if not room.usable or room.mig is not None:
        return None
    costs = costs_of.get(room.uuid, NOTHING)
    whole = (
        room.free_mib + costs.memory_mib == room.total_mib and room.free_milli + costs.compute_milli == WHOLE_GPU_MILLI
    )
    return costs if whole else None
