"""Another device plugin that gives out this node's GPUs: the kubelet counts its devices apart from ours, so one GPU would
be given twice. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from shared.model.gpu import Gpu


def gpus_offered_elsewhere(offered: Iterable[tuple[str, str]], gpus: Iterable[Gpu]) -> dict[str, str]:
    """The resource by which others offer a GPU, by its UUID. `offered`: resource and device id, as the kubelet may give them.

    NVIDIA's plugin names its devices by the UUIDs of GPUs and MIG instances, and replicas of them by UUID::number.
    """
    of = {
        uuid: gpu.uuid
        for gpu in gpus
        for uuid in (gpu.uuid, *(instance.uuid for instance in gpu.mig_instances))
        if uuid
    }
    return {of[uuid]: resource for resource, device in offered if (uuid := device.partition("::")[0]) in of}
