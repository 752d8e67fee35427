"""Suspending and resuming the slices of a running pod: the orders, and what is known to be done. Pure.

Suspension: the strategies carry the order out before it is answered. Only then does the device gate count what was
freed as free. Resumption is the other way round: the device gate counts everything as taken from the order on, and
refuses the order if other slices have the room. What could not be taken back is tried again with each tick, because
placement orders it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from services.node_agent import gate, moving
from services.node_agent.grant_store import GrantStore
from services.node_agent.messages import SuspendResult, SuspendTask
from services.node_agent.state import KnownGrant
from shared.contracts.node_commands import NodeGrant
from shared.model.gpu import Gpu
from shared.model.suspension import Suspension, can_suspend, goes_to_host, left_of

HALF_RESUMED = Suspension(action="checkpoint", plan_id="")
"""What a pod resumes from that is ordered to run, and is not known to have all its memory back: an agent that was
killed while it resumed it has left no more than that."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from a received grant. `task` None: the slices have nothing to do; `reason` says why, if they
    should."""

    received: NodeGrant
    task: SuspendTask | None = None
    reason: str = ""
    ok: bool = True


def apply_order(store: GrantStore, received: NodeGrant, node: str, gpus: Mapping[str, Gpu]) -> Order:
    """Stores a received grant, with its suspension if that can be carried out. The caller has checked the grant."""
    before = store.get(received.grant.grant_id)
    previous = None if before is None else before.grant.suspension
    if previous is None and before is not None and before.on_host and not goes_to_host(received.suspension):
        previous = HALF_RESUMED
    if received.suspension is None and previous is None:
        store.remember(received)
        return Order(received=received)
    reason = _unsupported(received, before) or _resume_refusal(store, before, received, node, gpus)
    if reason:
        known = store.remember(msgspec.structs.replace(received, suspension=previous))
        store.put(msgspec.structs.replace(known, restore_pending=received.suspension is None))
        return Order(received=received, reason=reason, ok=received.suspension is not None)
    applied = None if before is None else before.applied
    store.remember(received)
    containers = tuple(lease.container for lease in store.leases_of(received.grant.grant_id))
    task = SuspendTask(
        received.grant.grant_id,
        received.uid,
        containers,
        received.suspension,
        previous,
        applied,
        None if received.turns is None else received.turns.hook,
    )
    return Order(received=received, task=moving.with_move(store, task, node, gpus))


def record_results(store: GrantStore, results: Iterable[SuspendResult]) -> dict[str, str]:
    """Records what the slices have done. Returns why they could not, by grant id."""
    results = tuple(results)
    store.under_way -= Counter(result.task.grant_id for result in results)
    failed: dict[str, str] = {}
    for result in results:
        task = result.task
        known = store.get(task.grant_id)
        if known is None or known.grant.suspension != task.suspension:
            continue  # a newer order came meanwhile, and has its own answer
        # What the slices have been told since may move memory to the host, although a still newer order ends that.
        goes_on = store.under_way[task.grant_id] > 0
        if result.reason:
            failed[task.grant_id] = result.reason
            if result.is_partial:
                moves = goes_to_host(task.suspension) or goes_to_host(task.previous)
                store.put(
                    msgspec.structs.replace(known, applied=None, restore_pending=True, on_host=known.on_host or moves)
                )
                continue
            # Failed slices are as before. Only of a pod that was to leave the host some memory may already be back on
            # the GPU: one that was to stay there, by an order that came again, has it all there.
            applied = None if goes_to_host(task.applied) else task.applied
            if goes_to_host(task.suspension) and goes_to_host(known.applied):
                applied = known.applied
            received = msgspec.structs.replace(known.grant, suspension=task.previous)
            on_host = known.on_host and (goes_on or task.suspension is None or goes_to_host(task.previous))
            store.put(
                msgspec.structs.replace(
                    known, grant=received, applied=applied, restore_pending=task.suspension is None, on_host=on_host
                )
            )
        else:
            on_host = known.on_host and (goes_on or goes_to_host(task.suspension) or result.on_host)
            known = moving.after(known, task)
            # An earlier task of the same order may have failed in part. What is done by now is not to be undone.
            store.put(msgspec.structs.replace(known, applied=task.suspension, restore_pending=False, on_host=on_host))
    return failed


def interrupted(saved: Iterable[KnownGrant]) -> list[KnownGrant]:
    """What the agent begins with: pods that an earlier one was about to resume are resumed with the next tick."""
    return [msgspec.structs.replace(known, restore_pending=True) if known.comes_back else known for known in saved]


def retry_restores(store: GrantStore, node: str, gpus: Mapping[str, Gpu]) -> list[Order]:
    """Tries again to resume pods that could not take everything back."""
    waiting = [known.grant for known in store.known if known.restore_pending]
    return [apply_order(store, msgspec.structs.replace(received, suspension=None), node, gpus) for received in waiting]


def applied_to(store: GrantStore, grant_id: str) -> Suspension | None:
    known = store.get(grant_id)
    return None if known is None else known.applied


def _unsupported(received: NodeGrant, before: KnownGrant | None) -> str:
    if received.suspension is None:
        return ""
    if before is not None and before.cannot_checkpoint and goes_to_host(received.suspension):
        return f"its programs cannot be checkpointed: {before.cannot_checkpoint}"
    if can_suspend(received.suspension.action, received.grant.containers.values()):
        return ""
    strategies = sorted({part.strategy for part in received.grant.containers.values()})
    return f"slices of strategy {' and '.join(strategies)} do not support {received.suspension.action} while they run"


def _resume_refusal(
    store: GrantStore, before: KnownGrant | None, received: NodeGrant, node: str, gpus: Mapping[str, Gpu]
) -> str:
    """Why the pod cannot take back what its suspension has freed; empty if it can."""
    if before is None or (before.applied is None and not before.on_host):
        return ""
    wanted = received.grant if received.suspension is None else left_of(received.grant, received.suspension)
    mine = store.leases_of(received.grant.grant_id)
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
