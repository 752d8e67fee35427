"""Which pods have a part of a GPU, and which of them have to go because it failed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from services.node_agent.state import Known
from shared.contracts.commands import Evict
from shared.contracts.node_commands import CordonedPod
from shared.model.gpu import Gpu

Running = Callable[[str], bool]
"""Whether anything of a grant was handed over and has not been seen to end, by its id."""


def find_pods(gpus: Iterable[str], known: Iterable[Known], running: Running) -> tuple[CordonedPod, ...]:
    """Of grants that may be handed over, and of those that still run."""
    meant = frozenset(gpus)
    return tuple(
        CordonedPod(uid=k.grant.uid, namespace=k.grant.namespace, name=k.grant.name, running=running(k.grant_id))
        for k in known
        if (running(k.grant_id) or not k.releasing)
        and any(share.uuid in meant for container in k.grant.grant.containers.values() for share in container.gpus)
    )


def evictions(gpus: Mapping[str, Gpu], known: Iterable[Known], running: Running) -> tuple[Evict, ...]:
    """The pods on unhealthy GPUs, each once."""
    every = tuple(known)
    found = {
        pod.uid: Evict(
            uid=pod.uid, namespace=pod.namespace, name=pod.name, reason=f"GPU {uuid} is unhealthy: {gpu.reason}"
        )
        for uuid, gpu in gpus.items()
        if gpu.state == "unhealthy"
        for pod in find_pods((uuid,), every, running)
    }
    return tuple(found.values())
