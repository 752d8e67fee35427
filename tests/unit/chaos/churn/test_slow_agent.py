"""Slow hollow nodes: containers continue for a while after their release, and the journal has their end first."""

from __future__ import annotations

import random
from pathlib import Path

from services.node_agent import messages as m
from services.node_agent.fleet import Fleet
from services.simulator.hollow import inventory_of
from shared.contracts.events import SliceReleased
from shared.contracts.node_commands import NodeGrant, NodeRelease, NodeSync
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.hollow_node import HollowNode
from tests.chaos.churn.journal import Booted, Ended, Reader, Started, Writer
from tests.chaos.churn.slow_agent import ENDS_WITHIN_S, DurableFleet, slow_machines

NODE = HollowNode(name="n1", count=1, memory_mib=81_920)
GPU = inventory_of(NODE, "boot").gpus[0].uuid
SHARE = ContainerGrant(
    strategy="exclusive", gpus=(GpuShare(node="n1", uuid=GPU, memory_mib=81_920, compute_milli=1000),)
)
GRANT = NodeGrant(1, "uid-a", "ns", "a", Grant(grant_id="g1", term=1, containers={"main": SHARE}))


def released(orders: list[m.Command]) -> list[str]:
    events = [order.event for order in orders if isinstance(order, m.Publish)]
    return [event.grant_id for event in events if isinstance(event, SliceReleased)]


def test_a_container_ends_some_time_after_its_release_was_requested(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    fleet = Fleet(slow_machines([NODE], "boot", Writer(path), random.Random(1)))
    journal = Reader(path)
    fleet.boot("n1", 0.0)
    fleet.handle("n1", m.SyncReceived(NodeSync(term=1, node="n1")), 0.0)
    for _ in range(2):  # sent again, nothing starts a second time
        fleet.handle("n1", m.GrantReceived(GRANT), 1.0)
    booted, begun = journal.read()
    assert booted == Booted()
    assert isinstance(begun, Started)
    assert (begun.key, begun.grant_id, begun.gpus) == (("n1", "uid-a", "main"), "g1", {GPU: (81_920, 1000)})

    orders = fleet.handle("n1", m.ReleaseReceived(NodeRelease(1, "uid-a", "g1")), 2.0)
    orders += fleet.handle("n1", m.Tick(), 2.0 + ENDS_WITHIN_S[0] / 2)
    assert released(orders) == []
    assert journal.read() == []

    orders = fleet.handle("n1", m.Tick(), 2.0 + ENDS_WITHIN_S[1])
    assert released(orders) == ["g1"]
    assert journal.read() == [Ended("n1", "uid-a", "main")]


def test_a_released_grant_is_not_handed_over_by_the_next_process(tmp_path: Path) -> None:
    """Its leader may not know of the release yet: it names the grant while the pod exists."""

    def boot(boot_id: str) -> DurableFleet:
        machines = slow_machines([NODE], boot_id, Writer(tmp_path / "journal"), random.Random(1))
        fleet = DurableFleet(machines, tmp_path)
        fleet.boot("n1", 0.0)
        return fleet

    first = boot("boot")
    first.handle("n1", m.SyncReceived(NodeSync(term=1, node="n1")), 0.0)
    first.handle("n1", m.GrantReceived(GRANT), 1.0)
    first.handle("n1", m.ReleaseReceived(NodeRelease(1, "uid-a", "g1")), 2.0)
    first.handle("n1", m.Tick(), 2.0 + ENDS_WITHIN_S[1])
    journal = Reader(tmp_path / "journal")
    journal.read()

    second = boot("another boot")
    orders = second.handle("n1", m.SyncReceived(NodeSync(term=2, node="n1", grants=(GRANT,))), 10.0)
    assert journal.read() == [Booted()]
    (answer,) = [order.body for order in orders if isinstance(order, m.Answer)]
    assert answer.tombstones == ("g1",)
