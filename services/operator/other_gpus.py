"""Whether a pod has GPUs that another system gave it: a node with such pods is not enrolled, or its GPUs are given
twice."""

from __future__ import annotations

from services.operator.objects import TERMINAL, Pod
from shared.model import names
from shared.model.units import QuantityError, quantity

PREFIXES = (
    "nvidia.com/gpu",
    "nvidia.com/mig-",
    "volcano.sh/vgpu-",
    "volcano.sh/gpu-",
    "aliyun.com/gpu-",
    "koordinator.sh/gpu",
    "tencent.com/vcuda-",
)
"""What names of other systems' GPU resources begin with; HAMi's are nvidia.com/gpu, gpumem and gpucores."""
ANNOTATIONS = ("gpu-fraction", "gpu-memory")
"""KAI's and Run:ai's parts of GPUs are in no resource."""


def has_gpus_of_others(pod: Pod) -> bool:
    """A pod on a node that asks for GPUs in another system's words and has no grant of Kerf's."""
    if not pod.spec.node_name or pod.status.phase in TERMINAL or names.ANNOTATION_GRANT in pod.metadata.annotations:
        return False
    return any(name in pod.metadata.annotations for name in ANNOTATIONS) or any(
        resource.startswith(PREFIXES) and _amount(value)
        for container in (*pod.spec.containers, *pod.spec.init_containers)
        for half in (container.resources.limits, container.resources.requests)
        for resource, value in half.items()
    )


def _amount(value: str | int) -> bool:
    """Whether the amount is one; what cannot be read counts, for the node may then be used."""
    try:
        return quantity(str(value)) != 0
    except QuantityError:
        return True
