"""The node agent over a real NATS server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.config import Config
from services.node_agent.service import NodeAgent
from services.simulator.hollow import inventory_of
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.bus.provision import provision
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.envelope import unwrap
from shared.contracts.events import SliceEnforced, SliceReleased
from shared.contracts.node_commands import (
    Accepted,
    Beat,
    NodeGrant,
    NodeRelease,
    NodeSync,
    NodeSyncAnswer,
    ReleasesSeen,
)
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.hollow_node import HollowNode
from shared.service import running
from tests.support.first_sync import first_sync
from tests.support.waiting import eventually

NODES = tuple(HollowNode(name=f"node-{i}.example", memory_mib=1000, count=2) for i in range(50))
FIRST = NODES[0].name
GPU = inventory_of(NODES[0], "").gpus[0].uuid


def grant(name: str, *, term: int = 1, memory: int = 400) -> NodeGrant:
    share = GpuShare(node=FIRST, uuid=GPU, memory_mib=memory, compute_milli=0)
    made = Grant(grant_id=f"g-{name}", term=term, containers={"c": ContainerGrant(strategy="advisory", gpus=(share,))})
    return NodeGrant(term=term, uid=f"u-{name}", namespace="team", name=name, grant=made)


class Ear:
    """Public events about slices, as any subscriber receives them."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    async def __call__(self, incoming: Incoming) -> None:
        self.heard.append(unwrap(incoming.payload)[1])

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.heard if isinstance(event, kind)]


async def ask(bus: NatsBus, verb: str, body: Any, kind: Any, node: str = FIRST) -> Any:
    return decode(await bus.request(subjects.node_command(node, verb), encode(body)), kind)


async def inventories(bus: NatsBus) -> dict[str, Inventory]:
    found = {}
    for node in NODES:
        entry = await bus.kv(subjects.KV_NODES).get(subjects.token(node.name))
        if entry.value is not None:
            found[node.name] = decode(entry.value, Inventory)
    return found


async def test_a_fleet_serves_all_its_nodes(nats: EmbeddedServer, bus: NatsBus) -> None:
    """Inventories, heartbeats, grants, the device gate, releases until acknowledged, and a sync, as placement sees
    them."""
    ear, beats = Ear(), []
    await bus.subscribe("kerf.v1.event.slice.>", ear)

    async def beat(incoming: Incoming) -> None:
        beats.append(decode(incoming.payload, Beat))

    await bus.subscribe(subjects.HEARTBEAT_ALL, beat)
    async with running(NodeAgent, Config(hollow=NODES), bus_url=nats.url):
        found = await eventually(lambda: _all_there(bus), what="all inventories in the store")
        assert found[FIRST].simulated
        assert len(await eventually(lambda: beats and beats[0].nodes)) == len(NODES)
        await first_sync(nats.url, FIRST)

        assert (await ask(bus, "grant", grant("a"), Accepted)).ok
        assert (await ask(bus, "grant", grant("b", memory=601), Accepted)).ok
        await eventually(lambda: ear.of(SliceEnforced))
        assert [event.name for event in ear.of(SliceEnforced)] == ["a"], "b would exceed the device"

        reply = await ask(bus, "sync", NodeSync(term=2, node=FIRST, grants=(grant("a", term=2),)), NodeSyncAnswer)
        assert (reply.accepted, [live.name for live in reply.live]) == (True, ["a"])
        assert not (await ask(bus, "grant", grant("c", term=1), Accepted)).ok

        assert (await ask(bus, "release", NodeRelease(term=2, uid="u-a", grant_id="g-a"), Accepted)).ok
        await eventually(lambda: ear.of(SliceReleased))
        await bus.publish(subjects.node_command(FIRST, "ack"), encode(ReleasesSeen(grant_ids=("g-a",))))
        assert not (await ask(bus, "grant", grant("a", term=2), Accepted)).ok


async def test_inventories_are_put_again_after_the_store_is_lost(nats: EmbeddedServer, bus: NatsBus) -> None:
    """The server comes back empty; after provisioning every inventory is there again."""
    async with running(NodeAgent, Config(hollow=NODES[:3]), bus_url=nats.url):
        await eventually(lambda: _all_there(bus, 3))
        await nats.restart(wipe=True)
        await eventually(lambda: bus.connected)
        await eventually(lambda: _provisioned(bus))
        await eventually(lambda: _all_there(bus, 3), within_s=30)


async def _provisioned(bus: NatsBus) -> bool:
    await provision(bus)
    return True


async def _all_there(bus: NatsBus, count: int = len(NODES)) -> dict[str, Inventory] | None:
    found = await inventories(bus)
    return found if len(found) == count else None


async def test_hollow_nodes_are_read_from_a_file(nats: EmbeddedServer, bus: NatsBus, tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps([{"name": NODES[0].name, "count": 4}, {"name": NODES[1].name}]))
    async with running(NodeAgent, Config(hollow_file=str(file)), bus_url=nats.url):
        found = await eventually(lambda: _all_there(bus, 2))
    assert len(found[FIRST].gpus) == 4


async def test_settings_that_name_no_node_are_refused(nats: EmbeddedServer) -> None:
    with pytest.raises(ValueError, match="set either this host"):
        async with running(NodeAgent, Config(), bus_url=nats.url):
            await asyncio.Event().wait()
