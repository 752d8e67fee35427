"""Why a container must not start now; and what is told of one that does. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from services.node_agent import gate
from services.node_agent import messages as m
from services.node_agent.grant_store import GrantStore
from services.node_agent.state import Known, Lease
from shared.contracts.events import SliceEnforced
from shared.model.gpu import ISOLATION_OF, Gpu, Inventory
from shared.model.grant import ContainerGrant


def refusal(  # noqa: PLR0917 - all that the core knows
    asked: m.StartRequested,
    known: Known,
    store: GrantStore,
    inventory: Inventory | None,
    gpus: Mapping[str, Gpu],
    node: str,
) -> tuple[str, str] | None:
    """Code and sentence; None where it may. `known`: its pod's grant."""
    if known.releasing:
        return "grant-leaving", "the pod's grant is being given back; nothing new of it may start"
    granted = (known.grant.namespace, known.grant.name)
    if asked.pod is not None and asked.pod != granted:
        return (
            "another-pod",
            f"the grant of UID {asked.uid} is of pod {'/'.join(granted)}, and the kubelet starts {'/'.join(asked.pod)}",
        )
    share = known.share(asked.container)
    if share is None:
        return "no-share", f"the pod's grant has no part for container {asked.container!r}"
    strategy_refusal = gate.strategy_refusal(share, inventory)
    if strategy_refusal is not None:
        return strategy_refusal
    if not gpus:
        # After a boot the driver may come late: nothing is known of the grant's GPU, not that it is gone.
        return "no-gpus", "NVML shows no GPU on this node now (its agent's log says why); the kubelet will try again"
    if known.grant.suspension is not None and known.grant.suspension.action == "checkpoint":
        return (
            "suspended",
            "the pod is checkpointed for others, and has no memory to start with; the kubelet will try again",
        )
    others = store.shares(without=((asked.uid, asked.container),))
    room, taken = gate.occupied(others, node), gate.cut(others, gpus)
    for gpu in (known.left(asked.container) or share).gpus:
        why = gate.refusal(gpu, gpus.get(gpu.uuid) if gpu.node == node else None, room, taken)
        if why is not None:
            return why
    return None


def enforced(known: Known, lease: Lease, share: ContainerGrant, inventory: Inventory | None, node: str) -> m.Publish:
    amounts = {g.uuid: (g.memory_mib, g.compute_milli) for g in share.gpus}
    models = {} if inventory is None else {gpu.uuid: gpu.model for gpu in inventory.gpus}
    came = known.grant
    simulated = inventory is not None and inventory.simulated
    event = SliceEnforced(
        node=node,
        uid=came.uid,
        namespace=came.namespace,
        name=came.name,
        container=lease.container,
        grant_id=known.grant_id,
        strategy=share.strategy,
        promise="soft" if simulated else ISOLATION_OF[share.strategy],
        gpus=amounts,
        model=models.get(share.gpus[0].uuid, "") if share.gpus else "",
        traceparent=came.grant.traceparent,
    )
    identity = f"enforced-{known.grant_id}-{lease.container}-{lease.boot_id}"
    return m.Publish(event, identity, came.namespace, came.grant.traceparent)
