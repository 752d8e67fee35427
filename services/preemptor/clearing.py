"""What it costs at the least to have nobody on some of a node's GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from services.preemptor.candidate import Candidate, Last
from shared.book.shares import GpuRoom
from shared.book.states import NodeState
from shared.model.units import WHOLE_GPU_MILLI

_PARTS = 840
"""Of a pod: it can be divided evenly over as many GPUs as a node has."""


class Clearing(NamedTuple):
    """What it costs to have nobody on a GPU: of pods that are on several, a part. What they give back there."""

    priority: int
    least_gpu_ms: int
    price_gpu_ms: int
    gpu_milli: int
    pods: int
    last: Last
    memory_mib: int
    compute_milli: int


_NOTHING = Clearing(-(1 << 31), 0, 0, 0, 0, Last(("~", "~")), 0, 0)


def clearings(candidates: Iterable[Candidate]) -> dict[str, Clearing]:
    """By GPU, of those who may end."""
    found: dict[str, Clearing] = {}
    for c in candidates:
        if not c.may_end:
            continue
        uuids = {share.uuid for share in c.shares}
        parts = max(1, len(uuids))
        for uuid in uuids:
            have = found.get(uuid, _NOTHING)
            found[uuid] = Clearing(
                max(have.priority, c.priority), max(have.least_gpu_ms, c.least_gpu_ms), have.price_gpu_ms + c.price_gpu_ms // parts, have.gpu_milli + c.gpu_milli // parts,
                have.pods + _PARTS // parts, max(have.last, c.last),
                have.memory_mib + sum(share.memory_mib for share in c.shares if share.uuid == uuid), have.compute_milli + sum(share.compute_milli for share in c.shares if share.uuid == uuid),
            )  # fmt: skip
    return found


def emptied(count: int, node: NodeState, clearing: Mapping[str, Clearing]) -> tuple[int, int, int, int, Last] | None:
    """Priority, GPU-ms, GPU milli, pods, and who came last: of each the least at which `count` of its GPUs may have nobody on them.
    None where there cannot be so many."""
    gpus = [costs for room in node.gpus if (costs := _cleared(room, clearing)) is not None]
    if len(gpus) < count:
        return None
    priority, least, price, milli, pods, last = (sorted(column) for column in list(zip(*gpus, strict=True))[:6])
    at = count - 1
    return priority[at], max(least[at], sum(price[:count])), sum(milli[:count]), -(-sum(pods[:count]) // _PARTS), last[at]


def _cleared(room: GpuRoom, clearing: Mapping[str, Clearing]) -> Clearing | None:
    if not room.usable or room.mig is not None:
        return None
    costs = clearing.get(room.uuid, _NOTHING)
    whole = room.free_mib + costs.memory_mib == room.total_mib and room.free_milli + costs.compute_milli == WHOLE_GPU_MILLI
    return costs if whole else None
