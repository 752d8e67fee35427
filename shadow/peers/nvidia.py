"""NVIDIA's device plugin with the scheduler of Kubernetes: whole GPUs, and GPUs sliced by time.

NVIDIA/k8s-device-plugin README.md ("Shared Access to GPUs") and docs/gpu-feature-discovery/README.md: a node's labels
say how many GPUs it has, how much memory, and by `nvidia.com/gpu.replicas` into how many replicas each is sliced;
replicas are `nvidia.com/gpu`, or `nvidia.com/gpu.shared` where they are renamed. Which GPU a pod got is in no object of
the API. Replicas are given out evenly there (`distributed`), and so they are counted here.
"""

from __future__ import annotations

from shadow.objects import SeenPod
from shadow.peers.base import (
    RESOURCE_GPU,
    RESOURCE_SHARED,
    Device,
    Given,
    Part,
    Surroundings,
    amount_of,
    discovered,
    replicas_of,
)
from shared.model.objects import Node
from shared.model.units import WHOLE_GPU_MILLI


class Nvidia:
    name = "nvidia"

    def devices(self, node: Node) -> tuple[Device, ...]:
        return discovered(node)

    def given(self, pod: SeenPod, around: Surroundings) -> Given | None:
        node = around.nodes.get(pod.spec.node_name)
        if node is None:
            return None
        whole, shared = amount_of(pod, RESOURCE_GPU), amount_of(pod, RESOURCE_SHARED)
        if not whole and not shared:
            return None
        replicas = replicas_of(node)
        if replicas > 1:
            parts = (replica(replicas),) * (whole + shared)
        else:
            parts = (Part(whole=True),) * whole + (replica(1),) * shared
        return Given(peer=self.name, node=node.metadata.name, parts=parts)


def replica(replicas: int) -> Part:
    """A replica promises nothing; it counts as its equal part of the GPU."""
    return Part(milli=WHOLE_GPU_MILLI // replicas, memory_milli=WHOLE_GPU_MILLI // replicas)
