"""Whether a pod has GPUs that another system gave it: a node with such pods is not enrolled, or its GPUs are given
twice."""

from __future__ import annotations

from services.operator.objects import TERMINAL, Pod
from shared.model import names
from shared.model.neighbours import GPU_RESOURCES, is_some

ANNOTATIONS = ("gpu-fraction", "gpu-memory")
"""KAI's and Run:ai's parts of GPUs are in no resource."""


def has_gpus_of_others(pod: Pod) -> bool:
    """A pod on a node that asks for GPUs in another system's words and has no grant of Kerf's."""
    if not pod.spec.node_name or pod.status.phase in TERMINAL or names.ANNOTATION_GRANT in pod.metadata.annotations:
        return False
    return any(name in pod.metadata.annotations for name in ANNOTATIONS) or any(
        resource.startswith(GPU_RESOURCES) and is_some(value)
        for container in (*pod.spec.containers, *pod.spec.init_containers)
        for half in (container.resources.limits, container.resources.requests)
        for resource, value in half.items()
    )
