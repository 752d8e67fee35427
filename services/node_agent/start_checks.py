"""Why a container must not start now, and the event that says what one has. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from services.node_agent import cards, gate, moving
from services.node_agent import messages as m
from services.node_agent.grant_store import GrantStore
from services.node_agent.state import KnownGrant, Lease
from shared.contracts.events import SliceEnforced
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import ContainerGrant
from shared.model.strategies import registered
from shared.model.suspension import goes_to_host, left_of_part


def refusal(  # noqa: PLR0917 - all that the core knows
    asked: m.StartRequested,
    known: KnownGrant,
    store: GrantStore,
    inventory: Inventory | None,
    gpus: Mapping[str, Gpu],
    node: str,
    *,
    serving: bool = False,
) -> tuple[str, str] | None:
    """Why this container must not start, as code and sentence; None if it may. `known`: the grant of its pod.

    `serving`: it is about the container's server, which this node runs for another one.
    """
    if known.releasing:
        return "grant-leaving", "the pod's grant is being released, so none of its containers may start"
    granted = (known.grant.namespace, known.grant.name)
    if asked.pod is not None and asked.pod != granted:
        return (
            "another-pod",
            (
                f"the grant of UID {asked.uid} belongs to pod {'/'.join(granted)}, but the kubelet starts pod "
                f"{'/'.join(asked.pod)}"
            ),
        )
    share = known.share(asked.container)
    if share is None:
        return "no-share", f"the pod's grant has no share for container {asked.container!r}"
    strategy_refusal = gate.strategy_refusal(share, inventory, serving=serving)
    if strategy_refusal is not None or known.is_client:  # a GPU of another node is that node's to guard
        return strategy_refusal
    if not gpus:
        # After a boot the driver may load late: then the GPU of the grant is unknown, not gone.
        return (
            "no-gpus",
            "NVML reports no GPU on this node now (the log of its agent says why); the kubelet tries again",
        )
    if goes_to_host(known.grant.suspension):
        return (
            "suspended",
            "the pod is suspended by checkpoint and its memory is in use by other pods; the kubelet tries again",
        )
    if (why := moving.start_refusal(known)) is not None:
        return why
    others = store.shares(without=((asked.uid, asked.container),))
    room, taken = gate.occupied(others, node), gate.used_mig_slices(others, gpus)
    for gpu in (known.remaining(asked.container) or share).gpus:
        why = gate.refusal(gpu, gpus.get(gpu.uuid) if gpu.node == node else None, room, taken)
        if why is not None:
            return why
    return cards.refusal(known, store, inventory)


def enforced_event(
    known: KnownGrant, lease: Lease, share: ContainerGrant, inventory: Inventory | None, node: str
) -> m.Publish:
    """What the container has now: nothing of a GPU, where its memory is on the host."""
    has = share if known.applied is None else left_of_part(share, known.applied)
    amounts = {g.uuid: (g.memory_mib, g.compute_milli) for g in has.gpus if g.memory_mib or g.compute_milli}
    models = {} if inventory is None else {gpu.uuid: gpu.model for gpu in inventory.gpus}
    received = known.grant
    simulated = inventory is not None and inventory.simulated
    event = SliceEnforced(
        node=node,
        uid=received.uid,
        namespace=received.namespace,
        name=received.name,
        container=lease.container,
        grant_id=known.grant_id,
        strategy=share.strategy,
        promise="soft" if simulated else registered()[share.limited_by].promise,
        gpus=amounts,
        model=models.get(share.gpus[0].uuid, "") if share.gpus else "",
        traceparent=received.grant.traceparent,
        shares_faults=registered()[share.limited_by].concurrent,
    )
    # Whatever has the id of an event of the last two minutes is dropped as a repetition of that one.
    had = hashlib.blake2s(repr(sorted(amounts.items())).encode(), digest_size=4).hexdigest()
    term, number = known.order
    identity = f"enforced-{known.grant_id}-{lease.container}-{lease.boot_id}-{term}-{number}-{had}"
    return m.Publish(event, identity, received.namespace, received.grant.traceparent)
