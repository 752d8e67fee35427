"""Placeholder pods, for queries of how many more pods of a kind would fit."""

from __future__ import annotations

from shared.book.states import PodState, pod_state
from shared.model import names
from shared.model.affinity import Toleration
from shared.model.kube_object import Meta
from shared.model.objects import Container, Pod, PodSpec, Resources

NAMESPACE = "kerf-advice"
"""A namespace of that name may exist all the same, for uids distinguish pods."""


def placeholder_pod(gpus: int, number: int) -> PodState:
    """A pod that wants nothing but whole GPUs of one node, tolerates everything, and is of the highest priority."""
    limits: dict[str, str | int] = {names.RESOURCE_GPU: gpus}
    spec = PodSpec(
        scheduler_name=names.SCHEDULER_NAME,
        priority=1 << 31,
        tolerations=(Toleration(key=names.TAINT_MANAGED, operator="Exists"),),
        containers=(Container(name="main", resources=Resources(limits=limits)),),
    )
    return pod_state(
        Pod(
            metadata=Meta(name=f"group-{number}", namespace=NAMESPACE, uid=f"advice/{number}", resource_version="0"),
            spec=spec,
        )
    )
