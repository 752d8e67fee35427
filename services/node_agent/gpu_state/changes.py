"""The events that follow from a change of a node's inventory. Pure."""

from __future__ import annotations

from collections import Counter

from services.node_agent.messages import Publish
from shared.contracts.events import GpuStateChanged, NodeInventoried
from shared.model.gpu import Gpu, Inventory


def is_same(a: Inventory, b: Inventory) -> bool:
    """Whether two inventories are equal, except for the fields that the core sets itself."""
    own = ("generation", "node", "checkpoint_id")
    return all(getattr(a, field) == getattr(b, field) for field in a.__struct_fields__ if field not in own)


def events_for(before: dict[str, Gpu], now: Inventory) -> list[Publish]:
    """The event of the inventory, and one for each GPU whose state has changed."""
    identity = f"{now.node}-{now.boot_id}{now.checkpoint_id}-{now.generation}"
    models = Counter(g.model for g in now.gpus)
    event = NodeInventoried(
        node=now.node,
        gpus=len(now.gpus),
        memory_mib=sum(g.memory_mib for g in now.gpus),
        models=tuple(sorted(models)),
        unhealthy=sum(g.state != "healthy" for g in now.gpus),
        generation=now.generation,
        problem=now.problem,
        gpus_by_model=dict(models),
    )
    out = [Publish(event, f"inventoried-{identity}")]
    for uuid, state, reason in _state_changes(before, {g.uuid: g for g in now.gpus}):
        out.append(
            Publish(GpuStateChanged(node=now.node, uuid=uuid, state=state, reason=reason), f"gpu-{uuid}-{identity}")
        )
    return out


def _state_changes(before: dict[str, Gpu], after: dict[str, Gpu]) -> list[tuple[str, str, str]]:
    """(uuid, state, reason) of each GPU whose state has changed or that is gone. New GPUs are not listed."""
    gone = [(uuid, "gone", "the node does not report it any more") for uuid in before if uuid not in after]
    changed = [
        (g.uuid, g.state, g.reason)
        for g in after.values()
        if (old := before.get(g.uuid)) is not None and old.state != g.state
    ]
    return gone + changed
