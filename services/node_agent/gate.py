"""The device gate (rule R7): whatever the rest of the house believes, a GPU is never handed over twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shared.model.gpu import Gpu, Inventory, Strategy
from shared.model.grant import ContainerGrant, GpuShare
from shared.model.mig import geometry_of, instance_mask
from shared.model.units import WHOLE_GPU_MILLI, format_mib

PROVEN: frozenset[Strategy] = frozenset({"interposer", "time_slice", "mps", "driver", "remote"})
"""Strategies that a node offers only while it has proven them."""
Occupancy = dict[str, tuple[int, int]]
"""What is handed over by GPU uuid: (memory_mib, compute_milli)."""


def occupied(shares: Iterable[ContainerGrant], node: str) -> Occupancy:
    room: Occupancy = {}
    for container in shares:
        for share in container.gpus:
            if share.node == node:
                memory, compute = room.get(share.uuid, (0, 0))
                room[share.uuid] = (memory + share.memory_mib, compute + share.compute_milli)
    return room


def strategy_refusal(share: ContainerGrant, inventory: Inventory | None) -> tuple[str, str] | None:
    """Why the strategy of this share cannot be kept here now, as code and sentence; None where it can. A slice that was promised
    a limit does not start without it."""
    if share.strategy not in PROVEN or (inventory is not None and share.strategy in inventory.strategies):
        return None
    return (
        "strategy-not-offered",
        f"the grant is by strategy {share.strategy}, which this node does not offer now (its agent's health says why); delete the pod to have it placed anew",
    )


def cut(shares: Iterable[ContainerGrant], gpus: Mapping[str, Gpu]) -> dict[str, int]:
    """What MIG instances that are handed over take, as a mask by GPU uuid."""
    taken: dict[str, int] = {}
    for container in shares:
        for share in container.gpus:
            taken[share.uuid] = taken.get(share.uuid, 0) | _mask(share, gpus.get(share.uuid))
    return taken


def _mask(share: GpuShare, gpu: Gpu | None) -> int:
    geometry = None if gpu is None else geometry_of(gpu.model, gpu.memory_mib)
    return 0 if geometry is None or share.mig is None else instance_mask(geometry, share.mig)


def refusal(share: GpuShare, gpu: Gpu | None, room: Occupancy, taken: Mapping[str, int]) -> tuple[str, str] | None:
    """Why this share cannot be handed over beside what is, as code and sentence; None where it can.

    Memory that strangers hold is placement's business: it comes and goes, and a slice that was there first keeps its due.
    """
    if gpu is None:
        return (
            "gpu-gone",
            f"GPU {share.uuid} is not on this node any more; the grant on it is void, delete the pod to have it placed anew",
        )
    if gpu.state == "unhealthy":
        return "gpu-unhealthy", f"GPU {share.uuid} is unhealthy: {gpu.reason or 'no reason given'}"
    if gpu.mig_enabled != (share.mig is not None):
        modes = (
            "is in MIG mode, and the grant is of no instance",
            "is not in MIG mode, and the grant is of an instance",
        )
        return "gpu-mig-mode", f"GPU {share.uuid} {modes[share.mig is not None]}; delete the pod to have it placed anew"
    if share.mig is not None:
        where = f"MIG instance {share.mig.profile} at slice {share.mig.start}"
        if not gpu.mig_on_demand and share.mig not in gpu.mig_instances:
            return (
                "mig-instance-gone",
                f"GPU {share.uuid} has no {where} any more; delete the pod to have it placed anew",
            )
        if taken.get(share.uuid, 0) & _mask(share, gpu):
            return "mig-slices-taken", f"GPU {share.uuid} cannot give the {where}: some of its slices are handed over"
    return capacity_refusal(share, gpu, room)


def capacity_refusal(share: GpuShare, gpu: Gpu, room: Occupancy) -> tuple[str, str] | None:
    """Why this share exceeds the device beside what is handed over; None where it does not."""
    memory, compute = room.get(share.uuid, (0, 0))
    free = gpu.memory_mib - memory
    if share.memory_mib > free:
        return (
            "gpu-memory-full",
            f"GPU {share.uuid} has {format_mib(free)} of {format_mib(gpu.memory_mib)} not handed over, the grant wants {format_mib(share.memory_mib)}",
        )
    if share.compute_milli > WHOLE_GPU_MILLI - compute:
        return (
            "gpu-compute-full",
            f"GPU {share.uuid} has {WHOLE_GPU_MILLI - compute} of {WHOLE_GPU_MILLI} milli not handed over, the grant wants {share.compute_milli}",
        )
    return None
