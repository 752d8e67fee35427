"""Network cards at a start: none goes to more pods than it may have, whatever the rest of Kerf believes. Pure."""

from __future__ import annotations

from collections import Counter

from services.node_agent.grant_store import GrantStore
from services.node_agent.state import KnownGrant
from shared.model.gpu import Inventory


def refusal(known: KnownGrant, store: GrantStore, inventory: Inventory | None) -> tuple[str, str] | None:
    """Why a container of this grant must not get the grant's cards now, as code and sentence; None if it may.

    Counted are the other grants of which something is handed over. A card that the node no longer has is refused where
    its device node is looked up.
    """
    wanted = known.grant.grant.nics
    if not wanted or inventory is None:
        return None
    running = {lease.grant_id for lease in store.leases} - {known.grant_id}
    others = [other.grant for other in store.known if other.grant_id in running]
    given = Counter(name for other in others for name in other.grant.nics)
    for nic in inventory.nics:
        if nic.name in wanted and given[nic.name] >= nic.pods:
            holders = ", ".join(sorted(f"{one.namespace}/{one.name}" for one in others if nic.name in one.grant.nics))
            return (
                "nic-taken-here",
                f"network card {nic.name} may go to {nic.pods} pod(s) at a time, and is handed over to {holders}",
            )
    return None
