"""What a container counts under a ResourceQuota on `kerf.dev/quota-gpu-milli`, whichever way it asks for GPUs."""

from __future__ import annotations

from shared.model import names
from shared.model.kube_object import Quantities
from shared.model.mig import canonical_profile, nominal
from shared.model.request_amounts import read_number
from shared.model.units import MIB, WHOLE_GPU_MILLI

_WHERE = "container"


def quota_gpu_milli(limits: Quantities, gpu_bytes: int, least_milli: int) -> int:
    """Thousandths of a GPU of valid limits: the larger of the parts of compute and of memory.

    `gpu_bytes`: the memory of a GPU, for which model a pod gets is not known at admission. `least_milli`: what a part
    of each GPU counts at least, as no pod gets that GPU as a whole any more. A container counts its whole GPUs at most.
    The API server's policy `kerf-canonical` has the same in CEL.
    """
    mig = sum(
        read_number(limits, resource, _WHERE) * _of_profile(resource, gpu_bytes)
        for resource in limits
        if resource.startswith(names.PREFIX_MIG)
    )
    gpus = read_number(limits, names.RESOURCE_GPU, _WHERE)
    memory = read_number(limits, names.RESOURCE_GPU_MEMORY, _WHERE)
    percent = max(
        read_number(limits, resource, _WHERE)
        for resource in (names.RESOURCE_GPU_COMPUTE, names.RESOURCE_GPU_MEMORY_PERCENT)
    )
    if not memory and not percent:
        return mig + gpus * WHOLE_GPU_MILLI
    gpus = max(gpus, 1)
    of_memory = -(-(memory // gpus) * WHOLE_GPU_MILLI // gpu_bytes)
    share = max(gpus * max(of_memory, least_milli), percent * WHOLE_GPU_MILLI // 100)
    return mig + min(gpus * WHOLE_GPU_MILLI, share)


def _of_profile(resource: str, gpu_bytes: int) -> int:
    profile = canonical_profile(resource.removeprefix(names.PREFIX_MIG))
    if profile is None:
        return 0
    memory_mib, compute_milli = nominal(profile)
    return max(compute_milli, -(-memory_mib * MIB * WHOLE_GPU_MILLI // gpu_bytes))
