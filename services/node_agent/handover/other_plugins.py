"""Detects other device plugins that offer this node's GPUs. Pure.

The kubelet counts their devices apart from Kerf's slots, so one GPU would be allocated twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.model.gpu import Gpu


def gpus_offered_elsewhere(offered: Iterable[tuple[str, str]], gpus: Iterable[Gpu]) -> dict[str, str]:
    """The resource by which another plugin offers a GPU, by the GPU's UUID.

    `offered`: (resource, device id) pairs that the kubelet may allocate. NVIDIA's plugin names its devices by the UUIDs
    of GPUs and MIG instances, and their replicas by UUID::number.
    """
    of = {
        uuid: gpu.uuid
        for gpu in gpus
        for uuid in (gpu.uuid, *(instance.uuid for instance in gpu.mig_instances))
        if uuid
    }
    return {of[uuid]: resource for resource, device in offered if (uuid := device.partition("::")[0]) in of}
