"""Rehearsals: whether the programs of a pod can be checkpointed, known before its first turn ends. Pure."""

from __future__ import annotations

import msgspec

from services.node_agent import messages as m
from services.node_agent.grant_store import GrantStore
from services.node_agent.state import KnownGrant
from shared.contracts.events import SliceImpaired
from shared.model.suspension import can_suspend

CODE = "cannot-checkpoint"


def is_due(known: KnownGrant) -> bool:
    """Whether the pod takes turns, and it is not known yet whether it can be checkpointed."""
    terms = known.grant.turns
    return (
        terms is not None
        and terms.rehearse
        and terms.hook is None
        and not known.rehearsed
        and not known.releasing
        and not known.unbound
        and not known.is_client
        and known.grant.suspension is None
        and known.applied is None
        and can_suspend("checkpoint", known.effective.containers.values())
    )


def record(store: GrantStore, event: m.Rehearsed, node: str) -> list[m.Command]:
    """Notes what came of a rehearsal. A program that cannot be checkpointed is said on its pod."""
    known = store.get(event.grant_id)
    if known is None:
        return []
    store.put(msgspec.structs.replace(known, rehearsed=True, cannot_checkpoint=event.reason))
    if not event.reason:
        return [m.Save()]
    leases = store.leases_of(event.grant_id)
    gpu = next((gpu.uuid for part in known.effective.containers.values() for gpu in part.gpus), "")
    said = SliceImpaired(
        node=node,
        uid=known.grant.uid,
        namespace=known.grant.namespace,
        name=known.grant.name,
        container=min((lease.container for lease in leases), default=""),
        gpu=gpu,
        reason=CODE,
        sentence=f"it takes no turns by a checkpoint, because its programs cannot be checkpointed: {event.reason}",
    )
    return [m.Save(), m.Publish(said, f"{CODE}-{event.grant_id}", known.grant.namespace)]


def cannot_checkpoint(store: GrantStore, grant_id: str) -> str:
    """Why the pod's programs cannot be checkpointed; empty: they can, or it is not known."""
    known = store.get(grant_id)
    return "" if known is None else known.cannot_checkpoint
