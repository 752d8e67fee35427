"""What comes before checkpoints: rehearsals, which tell in time whether a pod's programs can be checkpointed; and
holds, by which the members of a gang on several nodes come to a stop together. Pure.
"""

from __future__ import annotations

import msgspec

from services.node_agent import messages as m
from services.node_agent.grant_store import GrantStore
from services.node_agent.state import KnownGrant
from shared.contracts.events import SliceImpaired
from shared.contracts.node_commands import NodeHold, NodeHoldAnswer
from shared.model.suspension import can_suspend

CODE, CODE_MOVE = "cannot-checkpoint", "cannot-move"


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
        and known.runs
        and can_suspend("checkpoint", known.effective.containers.values())
    )


def record(store: GrantStore, event: m.Rehearsed, node: str) -> list[m.Command]:
    """Notes what came of a rehearsal. A program that cannot be checkpointed is said on its pod."""
    known = store.get(event.grant_id)
    if known is None:
        return []
    store.put(
        msgspec.structs.replace(known, rehearsed=True, cannot_checkpoint=event.reason, cannot_move=event.cannot_move)
    )
    if not event.reason and not event.cannot_move:
        return [m.Save()]
    code = CODE if event.reason else CODE_MOVE
    sentence = (
        f"it takes no turns by a checkpoint, because its programs cannot be checkpointed: {event.reason}"
        if event.reason
        else f"after a turn it comes back to its own GPUs alone: {event.cannot_move}"
    )
    leases = store.leases_of(event.grant_id)
    gpu = next((gpu.uuid for part in known.effective.containers.values() for gpu in part.gpus), "")
    said = SliceImpaired(
        node=node,
        uid=known.grant.uid,
        namespace=known.grant.namespace,
        name=known.grant.name,
        container=min((lease.container for lease in leases), default=""),
        gpu=gpu,
        reason=code,
        sentence=sentence,
    )
    return [m.Save(), m.Publish(said, f"{code}-{event.grant_id}", known.grant.namespace)]


def hold(store: GrantStore, asked: NodeHold, node: str, term: int) -> list[m.Command]:
    """Members of a gang are held, or go on. It changes nothing that is known: an agent that ends lets them go on."""
    found = [store.get(grant_id) for grant_id in asked.grant_ids]
    why = ""
    if asked.term < term:
        why = f"term {asked.term} is over; this node follows term {term}"
    elif asked.hold_s and not all(known is not None and not known.is_client for known in found):
        why = "this node does not know all of these grants"
    elif asked.hold_s and not all(
        known is not None and can_suspend("checkpoint", known.effective.containers.values()) for known in found
    ):
        why = "not all of their slices can be checkpointed"
    if why:
        return [m.Answer(NodeHoldAnswer(node=node, ok=False, reason=why))]
    # A program that is stopped cannot sleep by itself.
    held = [known for known in found if known is not None and (known.grant.turns is None or not known.grant.turns.hook)]
    return [m.HoldPods(tuple(known.grant.uid for known in held), asked.hold_s)]


def cannot_checkpoint(store: GrantStore, grant_id: str) -> str:
    """Why the pod's programs cannot be checkpointed; empty: they can, or it is not known."""
    known = store.get(grant_id)
    return "" if known is None else known.cannot_checkpoint


def cannot_move(store: GrantStore, grant_id: str) -> str:
    """Why the pod's programs come back to their own GPUs alone; empty: to others too, or it is not known."""
    known = store.get(grant_id)
    return "" if known is None else known.cannot_move
