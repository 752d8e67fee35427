"""How much of a pod with GPUs is read at all."""

from __future__ import annotations

from shared.model.objects import Pod
from shared.model.request import RequestError

MAX_CONTAINERS = 256
"""Of a pod with GPUs: its init containers are compared with the others."""


def check_containers(pod: Pod) -> None:
    """Refuses a pod with GPUs that has more of them. Raises RequestError."""
    count = len(pod.spec.containers) + len(pod.spec.init_containers)
    if count > MAX_CONTAINERS:
        raise RequestError(
            "too-many-containers",
            f"the pod has {count} containers; a pod with GPUs may have {MAX_CONTAINERS} at most",
        )
