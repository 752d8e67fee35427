"""The pods that have a share of a GPU, and those to evict because their GPU has failed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from services.node_agent.state import KnownGrant
from shared.contracts.commands import Evict
from shared.contracts.node_commands import CordonedPod
from shared.model.gpu import Gpu

IsRunning = Callable[[str], bool]
"""Whether any share of a grant, by its id, is handed over to a container that has not been seen to end."""


def find_pods(gpus: Iterable[str], known: Iterable[KnownGrant], is_running: IsRunning) -> tuple[CordonedPod, ...]:
    """The pods with a share of these GPUs: of grants that may be handed over, and of grants that still run."""
    meant = frozenset(gpus)
    return tuple(
        CordonedPod(uid=k.grant.uid, namespace=k.grant.namespace, name=k.grant.name, running=is_running(k.grant_id))
        for k in known
        if (is_running(k.grant_id) or not k.releasing)
        and any(share.uuid in meant for container in k.grant.grant.containers.values() for share in container.gpus)
    )


def evictions(gpus: Mapping[str, Gpu], known: Iterable[KnownGrant], is_running: IsRunning) -> tuple[Evict, ...]:
    """The evictions of the pods on unhealthy GPUs, one per pod."""
    every = tuple(known)
    found = {
        pod.uid: Evict(
            uid=pod.uid, namespace=pod.namespace, name=pod.name, reason=f"GPU {uuid} is unhealthy: {gpu.reason}"
        )
        for uuid, gpu in gpus.items()
        if gpu.state == "unhealthy"
        for pod in find_pods((uuid,), every, is_running)
    }
    return tuple(found.values())
