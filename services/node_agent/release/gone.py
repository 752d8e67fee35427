"""Which leases have ended. Pure.

The kubelet makes a pod's cgroup before it starts any container of it, and takes it away when its worker for the pod has
ended: no container runs then, and none is being started. A pod that was deleted by force vanishes from the API server and
from PodResources while it still runs, and its cgroup stands; so the cgroup speaks first, and the other two can only delay.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from services.node_agent.handover.slots import Holder, Holding
from shared.contracts.node_commands import LiveSlice


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the host showed, each after the one before."""

    cgroups: frozenset[str]
    """UIDs of pods that have a cgroup."""
    holdings: tuple[Holding, ...]
    holders: tuple[Holder, ...]
    on_gpus: frozenset[str]
    """UIDs of pods that have a process on a GPU."""


def gone(leases: Iterable[LiveSlice], seen: Seen) -> list[LiveSlice]:
    named = _named(seen.holdings, seen.holders)
    return [
        lease
        for lease in leases
        if lease.uid not in seen.cgroups and lease.uid not in seen.on_gpus and (lease.uid, lease.container) not in named
    ]


def _named(holdings: Iterable[Holding], holders: Iterable[Holder]) -> set[tuple[str, str]]:
    """Containers that the kubelet holds slots for, by UID. PodResources knows names alone, and a pod may come back under the
    same name; the checkpoint keeps pods that are gone until the next allocation. Together they are right."""
    held = {(h.container, h.slots) for h in holders}
    return {(h.uid, h.container) for h in holdings if (h.container, h.slots) in held}
