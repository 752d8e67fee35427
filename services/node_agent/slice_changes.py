"""The events that say what slices have: since they were resized, suspended or resumed, and at a start. Pure."""

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
) -> list[m.Command]:
    """What the slices have that have something else now. `failed`: ids of the grants of those that have not."""
    out: list[m.Command] = []
    for result in results:
        known, task = store.get(result.task.grant_id), result.task
        # Each new leader orders again what a suspended pod has done long ago.
        if known is None or known.grant_id in failed or (task.suspension is not None and task.applied == known.applied):
            continue
        if result.on_host:
            continue  # what it had is as it was; placement orders its return again and again
        out += events_of(known, store, inventory, node)
    return out


def events_of(known: KnownGrant, store: GrantStore, inventory: Inventory | None, node: str) -> list[m.Command]:
    """What each container of a grant has that runs."""
    return [
        enforced_event(known, lease, share, inventory, node)
        for lease in store.leases_of(known.grant_id)
        if not known.is_client and (share := known.share(lease.container)) is not None
    ]


def at_start(store: GrantStore, inventory: Inventory | None, node: str) -> list[m.Command]:
    """What each slice has that an earlier agent handed over: that one may have ended between the lease and its event.

    Where the event was out already, the repetition changes nothing. A slice that is being resized, or comes back from
    the host, follows when that is done.
    """
    there = [known for known in store.known if known.has_all and not known.comes_back]
    return [event for known in there for event in events_of(known, store, inventory, node)]
