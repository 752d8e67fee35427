"""The device gate (rule R7): whatever the rest of the house believes, a GPU is never handed over twice."""

from __future__ import annotations

from collections.abc import Iterable

from shared.model.gpu import Gpu
from shared.model.grant import ContainerGrant, GpuShare
from shared.model.units import WHOLE_GPU_MILLI, format_mib

Room = dict[str, tuple[int, int]]
"""What is handed over by GPU uuid: (memory_mib, compute_milli)."""


def occupied(shares: Iterable[ContainerGrant], node: str) -> Room:
    room: Room = {}
    for container in shares:
        for share in container.gpus:
            if share.node == node:
                memory, compute = room.get(share.uuid, (0, 0))
                room[share.uuid] = (memory + share.memory_mib, compute + share.compute_milli)
    return room


def refusal(share: GpuShare, gpu: Gpu | None, room: Room) -> tuple[str, str] | None:
    """Why this share cannot be handed over beside what is, as code and sentence; None where it can.

    Memory that strangers hold is placement's business: it comes and goes, and a slice that was there first keeps its due.
    """
    if gpu is None:
        return "gpu-gone", f"GPU {share.uuid} is not on this node any more; the grant on it is void, delete the pod to have it placed anew"
    if gpu.state == "unhealthy":
        return "gpu-unhealthy", f"GPU {share.uuid} is unhealthy: {gpu.reason or 'no reason given'}"
    memory, compute = room.get(share.uuid, (0, 0))
    free = gpu.memory_mib - memory
    if share.memory_mib > free:
        return "gpu-memory-full", f"GPU {share.uuid} has {format_mib(free)} of {format_mib(gpu.memory_mib)} not handed over, the grant wants {format_mib(share.memory_mib)}"
    if share.compute_milli > WHOLE_GPU_MILLI - compute:
        return "gpu-compute-full", f"GPU {share.uuid} has {WHOLE_GPU_MILLI - compute} of {WHOLE_GPU_MILLI} milli not handed over, the grant wants {share.compute_milli}"
    return None
