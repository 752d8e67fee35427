"""Hollow nodes: real cores, and containers that start and end at once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from services.node_agent import messages as m
from services.node_agent.fleet import Fleet
from services.simulator.hollow import HollowMachine, inventory_of, machines
from shared.contracts.events import SliceEnforced
from shared.contracts.node_commands import (
    Accepted,
    NodeGrant,
    NodeHold,
    NodeHoldAnswer,
    NodeRelease,
    NodeSync,
    NodeSyncAnswer,
    RemoteEnd,
)
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.hollow_node import HollowNode
from shared.model.network import RemoteAbility
from shared.model.suspension import Suspension
from tests.unit.services.node_agent.make import accepted, answer, events, refusal, released

NODES = (HollowNode(name="a", memory_mib=1000, count=2), HollowNode(name="b.example", memory_mib=1000, count=1))
GPU = inventory_of(NODES[0], "x").gpus[0].uuid


def fleet(boot: str = "boot-1", nodes: Sequence[HollowNode] = NODES) -> Fleet:
    """Its nodes have booted, and were synced by a leader without grants."""
    made = Fleet(machines(nodes, boot))
    for name in made.names:
        made.boot(name, 0)
        made.handle(name, m.SyncReceived(NodeSync(term=1, node=name)), 0)
    return made


def grant(name: str, memory: int = 400, term: int = 1) -> NodeGrant:
    share = GpuShare(node="a", uuid=GPU, memory_mib=memory, compute_milli=0)
    return NodeGrant(
        term=term,
        uid=f"u-{name}",
        namespace="ns",
        name=name,
        grant=Grant(
            grant_id=f"g-{name}", term=term, containers={"c": ContainerGrant(strategy="advisory", gpus=(share,))}
        ),
    )


def test_a_hollow_node_boots_with_its_inventory() -> None:
    """The inventory is marked as simulated and has the same UUIDs at each start."""
    put = next(o.inventory for o in Fleet(machines(NODES, "boot-1")).boot("a", 0) if isinstance(o, m.PutInventory))
    assert (put.node, put.simulated, len(put.gpus), len(put.links)) == ("a", True, 2, 1)
    assert [g.uuid for g in put.gpus] == [g.uuid for g in inventory_of(NODES[0], "boot-2").gpus]


def test_a_grant_is_handed_over_at_once() -> None:
    orders = fleet().handle("a", m.GrantReceived(grant("p")), 0)
    assert accepted(orders)
    assert [type(event) for event in events(orders)] == [SliceEnforced]


def test_the_device_gate_applies_to_hollow_nodes() -> None:
    made = fleet()
    for name in ("p", "q"):
        assert refusal(made.handle("a", m.GrantReceived(grant(name, memory=500)), 0)) == ""
    assert refusal(made.handle("a", m.GrantReceived(grant("r", memory=1)), 0)) == "gpu-memory-full"


def test_a_release_is_answered_at_once() -> None:
    made = fleet()
    made.handle("a", m.GrantReceived(grant("p")), 0)
    assert released(made.handle("a", m.ReleaseReceived(NodeRelease(term=1, uid="u-p", grant_id="g-p")), 0)) == ["g-p"]


def test_a_sync_starts_the_grants_that_it_names() -> None:
    """After a restart of the process its nodes have rebooted; the grants come back by sync and run again."""
    made = fleet("boot-2")
    orders = made.handle("a", m.SyncReceived(NodeSync(term=3, node="a", grants=(grant("p", term=3),))), 0)
    reply = answer(orders)
    assert isinstance(reply, NodeSyncAnswer)
    assert (reply.live, reply.boot_id) == ((), "boot-2")
    assert [type(event) for event in events(orders)] == [SliceEnforced]


def test_subject_tokens_map_to_node_names() -> None:
    assert fleet().by_token == {"a": "a", "b_2eexample": "b.example"}


def test_each_pod_costs_five_commands() -> None:
    """Save, answer, save, hand-over, event."""
    made = fleet(nodes=[HollowNode(name="a", memory_mib=10**6, count=2)])
    for i in range(1000):
        orders = made.handle("a", m.GrantReceived(grant(str(i), memory=1)), 0)
        assert len(orders) == 5
        assert released(made.handle("a", m.ReleaseReceived(NodeRelease(term=1, uid=f"u-{i}", grant_id=f"g-{i}")), 0))


def test_hollow_slices_suspend_at_once() -> None:
    suspension = Suspension(action="pause", plan_id="p")
    share = GpuShare(node="a", uuid=GPU, memory_mib=100, compute_milli=500)
    made = Grant(grant_id="g", term=1, containers={"c": ContainerGrant(strategy="interposer", gpus=(share,))})
    body = answer(
        fleet().handle(
            "a",
            m.GrantReceived(NodeGrant(term=1, uid="u", namespace="ns", name="p", grant=made, suspension=suspension)),
            0,
        )
    )
    assert isinstance(body, Accepted)
    assert body.suspension == suspension


def test_what_is_to_stand_still_on_a_hollow_node_does() -> None:
    share = GpuShare(node="a", uuid=GPU, memory_mib=100, compute_milli=500)
    made = Grant(grant_id="g", term=1, containers={"c": ContainerGrant(strategy="interposer", gpus=(share,))})
    nodes = fleet()
    nodes.handle("a", m.GrantReceived(NodeGrant(term=1, uid="u", namespace="ns", name="p", grant=made)), 0)
    asked = NodeHold(term=1, node="a", grant_ids=("g",), hold_s=10)
    assert answer(nodes.handle("a", m.HoldReceived(asked), 0)) == NodeHoldAnswer(node="a", ok=True)


def remote(name: str, role: str, *, memory: int = 400) -> NodeGrant:
    """A pod on node b.example with a part of a GPU of node a."""
    share = GpuShare(node="a", uuid=GPU, memory_mib=memory, compute_milli=0)
    part = ContainerGrant(strategy="remote", serving="advisory", gpus=(share,))
    end = RemoteEnd(role=role, peer={"client": "a", "serving": "b.example"}[role])  # type: ignore[arg-type]
    made = Grant(grant_id=f"g-{name}", term=1, containers={"c": part})
    return NodeGrant(term=1, uid=f"u-{name}", namespace="ns", name=name, grant=made, remote=end)


def test_hollow_nodes_serve_gpus_to_each_other() -> None:
    ability = RemoteAbility(address="a:1", client=True)
    made = fleet(nodes=[msgspec.structs.replace(node, remote=ability) for node in NODES])
    on_a = made.handle("a", m.GrantReceived(remote("p", "serving")), 0)
    on_b = made.handle("b.example", m.GrantReceived(remote("p", "client")), 0)
    assert [type(event) for event in events(on_a)] == [SliceEnforced]
    assert [order.remote for order in on_b if isinstance(order, m.HandOver)] == [remote("p", "client").remote]
    # What the server has is taken for the node's own containers, too.
    assert refusal(made.handle("a", m.GrantReceived(grant("q", memory=601)), 0)) == "gpu-memory-full"
    order = m.ReleaseReceived(NodeRelease(term=1, uid="u-p", grant_id="g-p"))
    assert released(made.handle("a", order, 0)) == ["g-p"]
    assert released(made.handle("b.example", order, 0)) == ["g-p"]


class Watched(HollowMachine):
    """Notes which grants' containers have started. They end when they are let."""

    def __init__(self, node: HollowNode, boot_id: str) -> None:
        super().__init__(node, boot_id)
        self.started: list[str] = []
        self.lets_end = False

    def start(self, uid: str, container: str, grant_id: str, share: ContainerGrant) -> None:
        self.started.append(grant_id)

    def take_ended(self, now: float) -> Sequence[tuple[str, str]]:
        return super().take_ended(now) if self.lets_end else ()


def test_a_server_starts_by_the_end_of_another_one_and_at_the_start_of_the_process() -> None:
    node = msgspec.structs.replace(NODES[0], remote=RemoteAbility(address="a:1"))
    machine = Watched(node, "boot-1")
    made = Fleet({"a": machine})
    made.boot("a", 0)
    made.handle("a", m.SyncReceived(NodeSync(term=1, node="a")), 0)
    made.handle("a", m.GrantReceived(remote("p", "serving", memory=600)), 0)
    assert refusal(made.handle("a", m.GrantReceived(remote("q", "serving", memory=600)), 0)) == "gpu-memory-full"
    saved = made.checkpoint("a")
    made.handle("a", m.ReleaseReceived(NodeRelease(term=1, uid="u-p", grant_id="g-p")), 1)
    machine.lets_end = True
    assert released(made.handle("a", m.Reconnected(), 10)) == ["g-p"]
    assert machine.started == ["g-p", "g-q"]

    again = Watched(node, "boot-2")
    Fleet({"a": again}, {"a": saved}).boot("a", 20)
    assert again.started == ["g-q"], "what ran in the boot before is given back, and leaves room"


def test_a_hollow_container_whose_grant_no_leader_knows_ends() -> None:
    ability = RemoteAbility(client=True)
    made = fleet(nodes=[msgspec.structs.replace(node, remote=ability) for node in NODES])
    made.handle("b.example", m.GrantReceived(remote("p", "client")), 0)
    orders = made.handle("b.example", m.SyncReceived(NodeSync(term=2, node="b.example")), 0)
    body = answer(orders)
    assert isinstance(body, NodeSyncAnswer)
    assert (body.live, released(orders)) == ((), ["g-p"])
