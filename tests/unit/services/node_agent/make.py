"""Grants, inventories and commands for the node agent's tests."""

from __future__ import annotations

from typing import Any

from services.node_agent import messages as m
from services.node_agent.core import Agent
from shared.contracts.events import Event, SliceReleased
from shared.contracts.node_commands import Accepted, NodeGrant, NodeRelease, NodeSync, NodeSyncAnswer
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant

NODE = "n1"
GPU_MIB = 1000


def inventory(boot: str = "boot-1", gpus: tuple[str, ...] = ("G0", "G1"), **changes: Any) -> m.InventorySeen:
    """An inventory. `changes` are fields of every GPU."""
    found = tuple(
        Gpu(**({"uuid": uuid, "index": i, "model": "X", "memory_mib": GPU_MIB} | changes))
        for i, uuid in enumerate(gpus)
    )
    return m.InventorySeen(Inventory(node=NODE, boot_id=boot, gpus=found))


def node_grant(
    name: str,
    *,
    term: int = 1,
    memory: int = 500,
    compute: int = 0,
    gpu: str = "G0",
    containers: tuple[str, ...] = ("main",),
) -> NodeGrant:
    share = GpuShare(node=NODE, uuid=gpu, memory_mib=memory, compute_milli=compute)
    grant = Grant(
        grant_id=f"g-{name}",
        term=term,
        containers={c: ContainerGrant(strategy="advisory", gpus=(share,)) for c in containers},
    )
    return NodeGrant(term=term, uid=f"u-{name}", namespace="ns", name=name, grant=grant)


def grant(name: str, **how: Any) -> m.GrantReceived:
    return m.GrantReceived(node_grant(name, **how))


def release(name: str, term: int = 1) -> m.ReleaseReceived:
    return m.ReleaseReceived(NodeRelease(term=term, uid=f"u-{name}", grant_id=f"g-{name}"))


def start(name: str, container: str = "main") -> m.StartRequested:
    return m.StartRequested(f"u-{name}", container)


def ended(name: str, container: str = "main") -> m.ContainerEnded:
    return m.ContainerEnded(f"u-{name}", container)


def sync(*grants: NodeGrant, term: int = 1, node: str = NODE) -> m.SyncReceived:
    return m.SyncReceived(NodeSync(term=term, node=node, grants=grants))


def agent(*events: m.Input) -> Agent:
    """An agent with two GPUs of 1000 MiB that was synced by a leader without grants, and has handled these events."""
    core = Agent(NODE)
    for event in (inventory(), sync(), *events):
        core.handle(event, 0.0)
    return core


def answer(orders: list[m.Command]) -> Accepted | NodeSyncAnswer:
    bodies = [order.body for order in orders if isinstance(order, m.Answer)]
    assert len(bodies) == 1, orders
    return bodies[0]


def accepted(orders: list[m.Command]) -> bool:
    body = answer(orders)
    assert isinstance(body, Accepted)
    return body.ok


def events(orders: list[m.Command]) -> list[Event]:
    return [order.event for order in orders if isinstance(order, m.Publish)]


def released(orders: list[m.Command]) -> list[str]:
    return [event.grant_id for event in events(orders) if isinstance(event, SliceReleased)]


def refusal(orders: list[m.Command]) -> str:
    """The code by which a start was refused, or "" if the share was handed over."""
    return "".join(order.code for order in orders if isinstance(order, m.RefuseStart))


def handed(orders: list[m.Command]) -> bool:
    return any(isinstance(order, m.HandOver) for order in orders)
