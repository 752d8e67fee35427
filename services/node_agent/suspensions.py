"""What pods give up for a while without ending, and take back: what is asked of the slices, and what of it is true. Pure.

An order to give up is carried out by the slices' strategies before anybody hears yes; only then is what was given up free for
others at the device gate. An order to take back is the other way round: it counts from the moment it is taken, and is refused
where others have the room. What could not be taken back is tried again with each tick: placement says it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from services.node_agent import gate
from services.node_agent.grant_store import GrantStore
from services.node_agent.messages import SuspendResult, SuspendTask
from services.node_agent.state import Known
from shared.contracts.node_commands import NodeGrant
from shared.model.gpu import Gpu
from shared.model.suspension import Suspension, can_suspend, left_of


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What comes of a grant that was said. `ask` None: nothing is to be done, and `reason` says why not, where it should."""

    came: NodeGrant
    task: SuspendTask | None = None
    reason: str = ""
    ok: bool = True


def apply_order(store: GrantStore, came: NodeGrant, node: str, gpus: Mapping[str, Gpu]) -> Order:
    """From now on this grant is known, and suspended as it says where it can be. The caller has seen that the grant may be known."""
    before = store.get(came.grant.grant_id)
    was = None if before is None else before.grant.suspension
    if came.suspension is None and was is None:
        store.remember(came)
        return Order(came=came)
    reason = _cannot(came) or _full(store, before, came, node, gpus)
    if reason:
        known = store.remember(msgspec.structs.replace(came, suspension=was))
        store.put(msgspec.structs.replace(known, restore_pending=came.suspension is None))
        return Order(came=came, reason=reason, ok=came.suspension is not None)
    applied = None if before is None else before.applied
    store.remember(came)
    containers = tuple(lease.container for lease in store.leases_of(came.grant.grant_id))
    return Order(came=came, task=SuspendTask(came.grant.grant_id, came.uid, containers, came.suspension, was, applied))


def record_results(store: GrantStore, results: Iterable[SuspendResult]) -> dict[str, str]:
    """Notes what the slices have done; why not, by grant, of those that could not."""
    failed: dict[str, str] = {}
    for result in results:
        task = result.task
        known = store.get(task.grant_id)
        if known is None or known.grant.suspension != task.suspension:
            continue  # another order came meanwhile, and has an answer of its own
        if result.reason:
            failed[task.grant_id] = result.reason
            if result.is_partial:
                store.put(msgspec.structs.replace(known, applied=None, restore_pending=True))
                continue
            # Slices that failed are as they were before; but of what was to come back from the host some may have come.
            applied = None if task.applied is not None and task.applied.action == "checkpoint" else task.applied
            came = msgspec.structs.replace(known.grant, suspension=task.was)
            store.put(
                msgspec.structs.replace(known, grant=came, applied=applied, restore_pending=task.suspension is None)
            )
        else:
            store.put(msgspec.structs.replace(known, applied=task.suspension))
    return failed


def retry_restores(store: GrantStore, node: str, gpus: Mapping[str, Gpu]) -> list[Order]:
    """What comes of trying once more to take back what could not be."""
    waiting = [known.grant for known in store.known if known.restore_pending]
    return [apply_order(store, msgspec.structs.replace(came, suspension=None), node, gpus) for came in waiting]


def applied_to(store: GrantStore, grant_id: str) -> Suspension | None:
    known = store.get(grant_id)
    return None if known is None else known.applied


def _cannot(came: NodeGrant) -> str:
    if came.suspension is None or can_suspend(came.suspension.action, came.grant.containers.values()):
        return ""
    strategies = sorted({part.strategy for part in came.grant.containers.values()})
    return f"slices by {' and '.join(strategies)} cannot {came.suspension.action} while they run"


def _full(store: GrantStore, before: Known | None, came: NodeGrant, node: str, gpus: Mapping[str, Gpu]) -> str:
    """Why it cannot take back what it has given up; empty where it can."""
    if before is None or before.applied is None:
        return ""
    wanted = came.grant if came.suspension is None else left_of(came.grant, came.suspension)
    mine = store.leases_of(came.grant.grant_id)
    shares = store.shares(without=tuple((lease.uid, lease.container) for lease in mine))
    for lease in mine:
        room, part = gate.occupied(shares, node), wanted.containers[lease.container]
        for share in part.gpus:
            why = (
                gate.capacity_refusal(share, gpus[share.uuid], room)
                if share.node == node and share.uuid in gpus
                else None
            )
            if why is not None:
                return why[1]
        shares.append(part)
    return ""
