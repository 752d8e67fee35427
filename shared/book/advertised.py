"""What a node advertises of Kerf's resources in its status, for autoscalers, Kueue and people, and what pods ask of it.

Kerf itself never reads these amounts: the book counts each GPU. The kubelet counts them, as every extended resource in
a node's status, and refuses a pod that does not fit. Therefore the watcher raises them before a Binding that would not
fit (`services.watcher.node_requests`).
"""

from __future__ import annotations

from shared.book.demand import MOST, effective
from shared.model import mig, names
from shared.model.gpu import Gpu, Inventory
from shared.model.kube_object import Quantities
from shared.model.objects import Pod
from shared.model.units import MIB, WHOLE_GPU_MILLI, whole

SLOTS_COUNTED = 1024
"""So many containers may share the GPUs of a node (the agents' default `slots`)."""


def advertised(inventory: Inventory, quota_gpu_bytes: int) -> dict[str, int]:
    """The amounts of a node with these GPUs, by resource; GPUs that are not healthy count nothing.

    Additive are `kerf.dev/gpu-memory` (bytes), `-compute` and `-memory-percent` (percent of one GPU) and
    `kerf.dev/quota-gpu-milli`, which each container that uses GPUs requests, in the unit of ResourceQuota:
    `quota_gpu_bytes` is the memory that counts as a whole GPU. `kerf.dev/gpu` is not additive, for 16 halves on 8 GPUs
    request it 16 times: a node has it for every slot. Of MIG profiles as many as fit, each profile by itself. So no
    simulation that adds up requests starts more nodes than are needed.
    """
    gpus = [gpu for gpu in inventory.gpus if gpu.state == "healthy"]
    if not gpus:
        return {}
    found = {
        names.RESOURCE_GPU: len(gpus) * SLOTS_COUNTED,
        names.RESOURCE_GPU_MEMORY: sum(gpu.memory_mib for gpu in gpus) * MIB,
        names.RESOURCE_GPU_COMPUTE: len(gpus) * 100,
        names.RESOURCE_GPU_MEMORY_PERCENT: len(gpus) * 100,
        names.RESOURCE_QUOTA: sum(_milli(gpu, quota_gpu_bytes) for gpu in gpus),
    }
    for gpu in gpus:
        for profile, count in _instances(gpu).items():
            resource = names.mig_resource(profile)
            found[resource] = found.get(resource, 0) + count
    return found


def _milli(gpu: Gpu, quota_gpu_bytes: int) -> int:
    """A GPU with more memory than a GPU counts by holds more slices that count by their memory."""
    return max(WHOLE_GPU_MILLI, -(-gpu.memory_mib * MIB * WHOLE_GPU_MILLI // quota_gpu_bytes))


def _instances(gpu: Gpu) -> dict[str, int]:
    """How many instances a GPU has of each MIG profile, or can have where the agent makes them."""
    if not gpu.mig_enabled:
        return {}
    if not gpu.mig_on_demand:
        counts: dict[str, int] = {}
        for instance in gpu.mig_instances:
            counts[instance.profile] = counts.get(instance.profile, 0) + 1
        return counts
    geometry = mig.geometry_of(gpu.model, gpu.memory_mib)
    return {} if geometry is None else {p.name: len(p.starts) for p in mig.GEOMETRIES[geometry].profiles}


def requested(pod: Pod) -> dict[str, int]:
    """What a pod asks of what its node advertises, by resource, as the kubelet adds it up. Raises QuantityError."""
    return effective(pod, _amounts)


def _amounts(requests: Quantities, limits: Quantities) -> dict[str, int]:
    return {
        name: min(MOST, whole(value))
        for name, value in (limits | requests).items()
        if names.is_gpu_resource(name) or name == names.RESOURCE_QUOTA
    }
