"""Finds the pod for which the kubelet prepares a ResourceClaim: it names the claim alone.

Pods may use a claim one after the other, and the kubelet may prepare it for the next one while the last one's grant is
still known: its release may be under way, or its end may not have been noticed.
"""

from __future__ import annotations

from functools import partial

from services.node_agent.grant_store import GrantStore
from services.node_agent.grant_wait import GrantWait
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.state import KnownGrant

Found = tuple[str, tuple[str, ...]]
"""The pod's UID, and the parts of its grant that are for the claim."""


class ClaimSearch:
    def __init__(self, store: GrantStore, grants: GrantWait, cgroups: PodCgroups) -> None:
        self._store, self._grants, self._cgroups = store, grants, cgroups

    async def find(self, claim: str) -> Found | None:
        """Waits for the grant of a pod that is there. If none comes: one that is being released, else None."""
        current = partial(self._store.find_by_claim, claim, self._may_be_prepared)
        found = current() or await self._grants.until(current, claim=claim)
        return found or self._store.find_by_claim(claim, lambda known: known.releasing)

    def _may_be_prepared(self, known: KnownGrant) -> bool:
        """The kubelet makes a pod's cgroup first, and removes it when the pod has ended."""
        uid = known.grant.uid
        return not known.releasing and (not self._cgroups.has_pod_cgroups() or bool(self._cgroups.present((uid,))))
