"""The events that say what slices have since they were resized, suspended or resumed. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable

from services.node_agent import messages as m
from services.node_agent.grant_store import GrantStore
from services.node_agent.start_checks import enforced_event
from services.node_agent.state import KnownGrant
from shared.model.gpu import Inventory


def after_suspensions(
    results: Iterable[m.SuspendResult],
    failed: Container[str],
    store: GrantStore,
    inventory: Inventory | None,
    node: str,
) -> list[m.Publish]:
    """What the slices have that were suspended or resumed. `failed`: ids of the grants of those that were not."""
    out: list[m.Publish] = []
    for result in results:
        known = store.get(result.task.grant_id)
        if known is not None and known.grant_id not in failed:
            term, number = known.order
            state = "all" if known.applied is None else known.applied.action
            out += events_of(known, store, inventory, node, f"-{state}-{term}-{number}")
    return out


def events_of(
    known: KnownGrant, store: GrantStore, inventory: Inventory | None, node: str, change: str = ""
) -> list[m.Publish]:
    """What each container of a grant has that runs. `change` names what has changed: a repeated event has the same
    id."""
    return [
        enforced_event(known, lease, share, inventory, node, change)
        for lease in store.leases_of(known.grant_id)
        if not known.is_client and (share := known.share(lease.container)) is not None
    ]
