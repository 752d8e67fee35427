"""GPUs by their link to the host, for `kerf.dev/topology: host`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shared.book.shares import GpuRoom
from shared.model.gpu import Gpu, Inventory

SAME_PERCENT = 5
"""Links that differ by less are as good as each other: repeated measurements differ by 1 to 3 %."""


def slower_mb_s(gpu: Gpu) -> int:
    """The measured bandwidth of a GPU's slower direction; 0: not measured."""
    return min(gpu.to_device_mb_s, gpu.from_device_mb_s)


def nearest_to_host(rooms: Sequence[GpuRoom], count: int, inventory: Inventory) -> list[GpuRoom]:
    """Of these GPUs (in the policy's order, `count` at least) those with the best links to the host.

    First the bandwidth of the slowest, then the fewest NUMA nodes, then the policy's order. Of GPUs that were not
    measured those with C2C come first.
    """
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    by_speed = sorted(rooms, key=lambda room: _rank(gpus[room.uuid]), reverse=True)
    slowest_mb_s, c2c = _rank(gpus[by_speed[count - 1].uuid])
    least_mb_s = slowest_mb_s * (100 - SAME_PERCENT) // 100
    alike = [room for room in rooms if _rank(gpus[room.uuid]) >= (least_mb_s, c2c if not slowest_mb_s else False)]
    by_node: dict[int, list[GpuRoom]] = {}
    for room in alike:
        by_node.setdefault(gpus[room.uuid].numa_node, []).append(room)
    whole = [group for group in by_node.values() if len(group) >= count]
    if whole:
        return whole[0][:count]
    groups = sorted(by_node.values(), key=len, reverse=True)  # stable: of equal ones the policy's first
    return [room for group in groups for room in group][:count]


def numa_nodes(rooms: Sequence[GpuRoom], inventory: Inventory) -> int:
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    return len({gpus[room.uuid].numa_node for room in rooms})


def _rank(gpu: Gpu) -> tuple[int, bool]:
    return slower_mb_s(gpu), gpu.c2c
