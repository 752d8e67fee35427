"""Decides which leases have ended. Pure.

The kubelet creates a pod's cgroup before it starts any container of the pod, and removes it when its worker for the pod
has ended: then no container runs, and none is being started. A pod that was deleted by force vanishes from the API
server and from PodResources while it still runs, but its cgroup stands. So the cgroup decides first, and the kubelet's
records and the GPU processes can only delay a release.

The kernel removes no cgroup that has a process, also none whose processes were killed and do not end because they wait
in the driver. So without NVML the cgroup and the kubelet's records are evidence enough; but then only on GPUs that take
no new slices, for a process that has left its pod's cgroup shows in NVML alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from services.node_agent.handover.slots import CheckpointEntry, PodResourcesEntry
from shared.contracts.node_commands import LiveSlice


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What was read from the host, one source after the other, the cgroups first."""

    cgroups: frozenset[str]
    """UIDs of the pods that have a cgroup."""
    checkpoint: tuple[CheckpointEntry, ...]
    pod_resources: tuple[PodResourcesEntry, ...]
    on_gpus: frozenset[str] | None
    """UIDs of the pods that have a process on a GPU. None: NVML has not answered for so long that it is not waited for.
    """
    closed_gpus: frozenset[str] = frozenset()
    """UUIDs of the GPUs that take no new slices because NVML does not answer. Only without `on_gpus` they matter."""


def find_ended(leases: Iterable[LiveSlice], evidence: Evidence) -> list[LiveSlice]:
    """The leases whose containers have ended for good, as far as the evidence goes."""
    named = _named(evidence.checkpoint, evidence.pod_resources)
    return [
        lease
        for lease in leases
        if lease.uid not in evidence.cgroups
        and _is_off_gpus(lease, evidence)
        and (lease.uid, lease.container) not in named
    ]


def _is_off_gpus(lease: LiveSlice, evidence: Evidence) -> bool:
    if evidence.on_gpus is None:
        return lease.gpus.keys() <= evidence.closed_gpus
    return lease.uid not in evidence.on_gpus


def _named(checkpoint: Iterable[CheckpointEntry], pod_resources: Iterable[PodResourcesEntry]) -> set[tuple[str, str]]:
    """The (pod UID, container) pairs that hold slots in both of the kubelet's records.

    PodResources knows only names, and a pod may come back under the same name. The checkpoint keeps ended pods until
    the next allocation. Only both together are right.
    """
    held = {(h.container, h.slots) for h in pod_resources}
    return {(h.uid, h.container) for h in checkpoint if (h.container, h.slots) in held}
