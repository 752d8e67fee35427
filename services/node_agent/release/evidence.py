"""Which leases have ended. Pure.

The kubelet makes a pod's cgroup before it starts any container of it, and takes it away when its worker for the pod has
ended: no container runs then, and none is being started. A pod that was deleted by force vanishes from the API server and
from PodResources while it still runs, and its cgroup stands; so the cgroup speaks first, and the other two can only delay.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from services.node_agent.handover.slots import CheckpointEntry, PodResourcesEntry
from shared.contracts.node_commands import LiveSlice


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the host showed, each after the one before."""

    cgroups: frozenset[str]
    """UIDs of pods that have a cgroup."""
    checkpoint: tuple[CheckpointEntry, ...]
    pod_resources: tuple[PodResourcesEntry, ...]
    on_gpus: frozenset[str]
    """UIDs of pods that have a process on a GPU."""


def find_ended(leases: Iterable[LiveSlice], evidence: Evidence) -> list[LiveSlice]:
    named = _named(evidence.checkpoint, evidence.pod_resources)
    return [
        lease
        for lease in leases
        if lease.uid not in evidence.cgroups
        and lease.uid not in evidence.on_gpus
        and (lease.uid, lease.container) not in named
    ]


def _named(checkpoint: Iterable[CheckpointEntry], pod_resources: Iterable[PodResourcesEntry]) -> set[tuple[str, str]]:
    """Containers that the kubelet holds slots for, by UID. PodResources knows names alone, and a pod may come back under the
    same name; the checkpoint keeps pods that are gone until the next allocation. Together they are right."""
    held = {(h.container, h.slots) for h in pod_resources}
    return {(h.uid, h.container) for h in checkpoint if (h.container, h.slots) in held}
