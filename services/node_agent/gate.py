"""The device gate (rule R7): a GPU is never handed over twice, whatever the rest of Kerf believes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shared.model.gpu import Gpu, Inventory
from shared.model.grant import ContainerGrant, GpuShare
from shared.model.mig import MigInstance, geometry_of, instance_mask
from shared.model.strategies import REMOTE, registered
from shared.model.units import WHOLE_GPU_MILLI, format_mib

Occupancy = dict[str, tuple[int, int]]
"""What is handed over, by GPU UUID: (memory_mib, compute_milli)."""


def occupied(shares: Iterable[ContainerGrant], node: str) -> Occupancy:
    room: Occupancy = {}
    for container in shares:
        for share in container.gpus:
            if share.node == node:
                memory, compute = room.get(share.uuid, (0, 0))
                room[share.uuid] = (memory + share.memory_mib, compute + share.compute_milli)
    return room


def strategy_refusal(
    share: ContainerGrant, inventory: Inventory | None, *, serving: bool = False
) -> tuple[str, str] | None:
    """Why this node cannot enforce the strategy of this share now, as code and sentence; None if it can.

    A slice that was promised a limit does not start without that limit. `serving`: for a container of another node.
    """
    if share.strategy == REMOTE and not serving:
        return _no_client(inventory)
    if share.strategy == REMOTE:
        if inventory is None or not inventory.remote.address:
            return "remote-not-offered", "this node serves no GPU to other nodes now (its agent's health says why)"
        share = share.served
    strategy = registered()[share.strategy]
    if inventory is not None and share.strategy in inventory.strategies:
        return None
    # A node with MPS takes back what every other one offers for parts, which would not share its GPUs fairly.
    if strategy.proof == "none" and not (strategy.always_offered and inventory is not None):
        return None
    return (
        "strategy-not-offered",
        (
            f"the grant uses strategy {share.strategy}, which this node does not offer now (the health of its "
            "agent says why); delete the pod to have it scheduled again"
        ),
    )


def _no_client(inventory: Inventory | None) -> tuple[str, str] | None:
    if inventory is not None and inventory.remote.client:
        return None
    return (
        "remote-not-offered",
        "the grant is on a GPU of another node, and this node cannot use those now (its agent's health says why); the "
        "kubelet tries again",
    )


def used_mig_slices(shares: Iterable[ContainerGrant], gpus: Mapping[str, Gpu]) -> dict[str, int]:
    """The MIG slices that are handed over, as a mask by GPU UUID."""
    taken: dict[str, int] = {}
    for container in shares:
        for share in container.gpus:
            taken[share.uuid] = taken.get(share.uuid, 0) | _mask(share, gpus.get(share.uuid))
    return taken


def _mask(share: GpuShare, gpu: Gpu | None) -> int:
    geometry = None if gpu is None else geometry_of(gpu.model, gpu.memory_mib)
    return 0 if geometry is None or share.mig is None else instance_mask(geometry, share.mig)


def _is(granted: MigInstance, instance: MigInstance) -> bool:
    """Whether the grant is for this instance. One that was granted on demand has no UUID."""
    same_place = (granted.profile, granted.start) == (instance.profile, instance.start)
    return same_place and granted.uuid in ("", instance.uuid)


def refusal(share: GpuShare, gpu: Gpu | None, room: Occupancy, taken: Mapping[str, int]) -> tuple[str, str] | None:
    """Why this share cannot be handed over in addition to `room` and `taken`, as code and sentence; None if it can.

    Memory that other processes hold does not count here. Placement accounts for it: it comes and goes, and a slice that
    was there first keeps its share.
    """
    if gpu is None:
        return (
            "gpu-gone",
            (
                f"GPU {share.uuid} is no longer on this node, so the grant on it is void; delete the pod to have "
                "it scheduled again"
            ),
        )
    if gpu.state == "unhealthy":
        return "gpu-unhealthy", f"GPU {share.uuid} is unhealthy: {gpu.reason or 'no reason given'}"
    if gpu.mig_enabled != (share.mig is not None):
        modes = (
            "is in MIG mode, and the grant is not for a MIG instance",
            "is not in MIG mode, and the grant is for a MIG instance",
        )
        return (
            "gpu-mig-mode",
            f"GPU {share.uuid} {modes[share.mig is not None]}; delete the pod to have it scheduled again",
        )
    if share.mig is not None:
        where = f"MIG instance {share.mig.profile} at slice {share.mig.start}"
        if not gpu.mig_on_demand and not any(_is(share.mig, instance) for instance in gpu.mig_instances):
            if not share.mig.uuid:
                return (
                    "mig-not-on-demand",
                    f"GPU {share.uuid} offers no {where} on demand now (the health of the node's agent says why); the "
                    "kubelet tries again, or delete the pod to have it scheduled again",
                )
            return (
                "mig-instance-gone",
                f"GPU {share.uuid} no longer has {where}; delete the pod to have it scheduled again",
            )
        if taken.get(share.uuid, 0) & _mask(share, gpu):
            return "mig-slices-taken", f"GPU {share.uuid} cannot provide {where}: some of its slices are handed over"
    return capacity_refusal(share, gpu, room)


def capacity_refusal(share: GpuShare, gpu: Gpu, room: Occupancy) -> tuple[str, str] | None:
    """Why the GPU has too little memory or compute left for this share, as code and sentence; None if it fits."""
    memory, compute = room.get(share.uuid, (0, 0))
    free = gpu.memory_mib - memory
    if share.memory_mib > free:
        return (
            "gpu-memory-full",
            (
                f"Insufficient memory on GPU {share.uuid}: {format_mib(free)} of {format_mib(gpu.memory_mib)} are "
                f"not handed over, and the grant needs {format_mib(share.memory_mib)}"
            ),
        )
    if share.compute_milli > WHOLE_GPU_MILLI - compute:
        return (
            "gpu-compute-full",
            (
                f"Insufficient compute on GPU {share.uuid}: {WHOLE_GPU_MILLI - compute} of {WHOLE_GPU_MILLI} "
                f"milli are not handed over, and the grant needs {share.compute_milli}"
            ),
        )
    return None
