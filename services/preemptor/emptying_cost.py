"""What it costs at the least to have nobody on some of a node's GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from services.preemptor.candidate import Candidate, Last
from shared.book.shares import GpuRoom
from shared.book.states import NodeState
from shared.model.units import WHOLE_GPU_MILLI

_PARTS = 840
"""Of a pod: it can be divided evenly over as many GPUs as a node has."""


class EmptyingCost(NamedTuple):
    """What it costs to have nobody on a GPU: of pods that are on several, a part. What they give back there."""

    priority: int
    least_gpu_ms: int
    price_gpu_ms: int
    gpu_milli: int
    pods: int
    """Parts of them, `_PARTS` of each."""
    last: Last
    memory_mib: int
    compute_milli: int

    @property
    def figures(self) -> tuple[int, int, int, int, Last]:
        """Priority, GPU-ms, GPU milli, pods, and who came last."""
        return (
            self.priority,
            max(self.least_gpu_ms, self.price_gpu_ms),
            self.gpu_milli,
            -(-self.pods // _PARTS),
            self.last,
        )


NOTHING = EmptyingCost(-(1 << 31), 0, 0, 0, 0, Last(("~", "~")), 0, 0)


def emptying_costs(candidates: Iterable[Candidate]) -> dict[str, EmptyingCost]:
    """By GPU, of those who may end."""
    found: dict[str, EmptyingCost] = {}
    for c in candidates:
        if not c.may_end:
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


def emptied(count: int, node: NodeState, clearing: Mapping[str, EmptyingCost]) -> list[EmptyingCost]:
    """What it costs at the least to have nobody on `count` of its GPUs, on as many again, and so on: no so many of its GPUs cost
    less than the first of these, no twice as many less than the first two."""
    gpus = [costs for room in node.gpus if (costs := _cleared(room, clearing)) is not None]
    columns = [sorted(column) for column in zip(*gpus, strict=True)]
    return [_sum(columns, at, at + count) for at in range(0, len(gpus) - count + 1, count)]


def min_total(parts: Sequence[EmptyingCost], count: int) -> EmptyingCost | None:
    """No `count` of them cost less. None where there are fewer."""
    return None if len(parts) < count else _sum([sorted(column) for column in zip(*parts, strict=True)], 0, count)


def _sum(columns: Sequence[Sequence[Any]], begin: int, end: int) -> EmptyingCost:
    """Of each figure by itself: the greatest of those of which only the greatest counts."""
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


def _cleared(room: GpuRoom, clearing: Mapping[str, EmptyingCost]) -> EmptyingCost | None:
    if not room.usable or room.mig is not None:
        return None
    costs = clearing.get(room.uuid, NOTHING)
    whole = (
        room.free_mib + costs.memory_mib == room.total_mib and room.free_milli + costs.compute_milli == WHOLE_GPU_MILLI
    )
    return costs if whole else None
