"""What the world is told of a node's inventory. Pure."""

from __future__ import annotations

from services.node_agent.messages import Publish
from shared.contracts.events import GpuStateChanged, NodeInventoried
from shared.model.gpu import Gpu, Inventory


def same(a: Inventory, b: Inventory) -> bool:
    """But for what the core counts itself."""
    return all(
        getattr(a, field) == getattr(b, field) for field in a.__struct_fields__ if field not in ("generation", "node")
    )


def told(before: dict[str, Gpu], now: Inventory) -> list[Publish]:
    """The inventory's event, and one for each GPU that changed its state."""
    identity = f"{now.node}-{now.boot_id}-{now.generation}"
    event = NodeInventoried(
        node=now.node,
        gpus=len(now.gpus),
        memory_mib=sum(g.memory_mib for g in now.gpus),
        models=tuple(sorted({g.model for g in now.gpus})),
        unhealthy=sum(g.state != "healthy" for g in now.gpus),
        generation=now.generation,
    )
    out = [Publish(event, f"inventoried-{identity}")]
    for uuid, state, reason in _state_changes(before, {g.uuid: g for g in now.gpus}):
        out.append(
            Publish(GpuStateChanged(node=now.node, uuid=uuid, state=state, reason=reason), f"gpu-{uuid}-{identity}")
        )
    return out


def _state_changes(before: dict[str, Gpu], after: dict[str, Gpu]) -> list[tuple[str, str, str]]:
    """GPUs whose state changed, or that came or went while others were known: uuid, state, reason."""
    gone = [(uuid, "gone", "the node does not report it any more") for uuid in before if uuid not in after]
    came = [
        (g.uuid, g.state, g.reason)
        for g in after.values()
        if (old := before.get(g.uuid)) is not None and old.state != g.state
    ]
    return gone + came
