"""The agent as the node of a GPU that another node uses, and as the node of the container that uses it."""

from __future__ import annotations

import msgspec
import pytest

from services.node_agent import messages as m
from services.node_agent.core import Agent
from services.node_agent.servers import AGAIN_S, GIVE_UP_S, REBOOTED
from services.node_agent.state import read, write
from shared.contracts.events import SliceEnforced, SliceImpaired, SliceReleased
from shared.contracts.node_commands import Accepted, NodeGrant, NodeSync, NodeSyncAnswer, RemoteEnd
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.network import RemoteAbility
from tests.unit.services.node_agent.make import (
    NODE,
    accepted,
    agent,
    answer,
    ended,
    events,
    grant,
    handed,
    inventory,
    refusal,
    release,
    released,
    start,
    sync,
)

PEER = "n2"
SERVING = RemoteEnd(role="serving", peer=PEER)
CLIENT = RemoteEnd(role="client", peer=PEER, address="10.0.0.2:14833")


def node_grant(name: str = "r", *, end: RemoteEnd = SERVING, memory: int = 500, gpu: str = "G0") -> NodeGrant:
    share = GpuShare(node=NODE if end.role == "serving" else PEER, uuid=gpu, memory_mib=memory, compute_milli=0)
    part = ContainerGrant(strategy="remote", serving="advisory", gpus=(share,))
    made = Grant(grant_id=f"g-{name}", term=1, containers={"main": part})
    return NodeGrant(term=1, uid=f"u-{name}", namespace="ns", name=name, grant=made, remote=end)


def remote(name: str = "r", **how: object) -> m.GrantReceived:
    return m.GrantReceived(node_grant(name, **how))  # type: ignore[arg-type]


def able(boot: str = "boot-1", *, gpus: tuple[str, ...] = ("G0", "G1"), client: bool = True) -> m.InventorySeen:
    seen = inventory(boot, gpus).inventory
    ability = RemoteAbility(address="10.0.0.1:14833", client=client)
    return m.InventorySeen(msgspec.structs.replace(seen, remote=ability))


def core(*inputs: m.Input) -> Agent:
    return agent(able(), *inputs)


def refusals(orders: list[m.Command]) -> list[str]:
    return [order.code for order in orders if isinstance(order, m.RefuseStart)]


def up(name: str = "r") -> m.ServerStarted:
    return m.ServerStarted(f"u-{name}", "main", f"g-{name}")


def down(name: str = "r", by_itself: str = "") -> m.ServerEnded:
    return m.ServerEnded(f"u-{name}", "main", f"g-{name}", by_itself)


def kinds(orders: list[m.Command], *kinds_: type[m.Command]) -> list[str]:
    return [type(order).__name__ for order in orders if isinstance(order, kinds_)]


SERVER = (m.Serve, m.FindServer, m.EndServer)


def found(*, runs: bool) -> m.ServerFound:
    return m.ServerFound("u-r", "main", "g-r", runs=runs)


def restarted(made: Agent) -> Agent:
    return Agent(NODE, read(write(made.checkpoint()), NODE))


# --- the node of the GPU ----------------------------------------------------------------------------------------


def test_a_bound_grant_starts_its_server_by_itself_and_only_once() -> None:
    made = core()
    orders = made.handle(remote(), 0)
    assert accepted(orders)
    (serve,) = [order for order in orders if isinstance(order, m.Serve)]
    assert (serve.uid, serve.container, serve.grant_id, serve.peer) == ("u-r", "main", "g-r", PEER)
    assert serve.share.served == ContainerGrant(strategy="advisory", gpus=serve.share.gpus)
    # Durable before it starts, and the slice is reported by the node that keeps its limits.
    assert kinds(orders, m.Save, m.Serve)[-2:] == ["Save", "Serve"]
    (event,) = [e for e in events(orders) if isinstance(e, SliceEnforced)]
    assert (event.node, event.strategy, event.promise, event.gpus) == (NODE, "remote", "soft", {"G0": (500, 0)})
    for repeated in (remote(), m.Tick(), up(), m.Tick()):
        assert kinds(made.handle(repeated, 100), *SERVER) == []


def test_a_decision_whose_pod_was_not_seen_bound_starts_no_server() -> None:
    made = core()
    hold = msgspec.structs.replace(node_grant(), unbound=True)
    assert kinds(made.handle(sync(hold), 0), *SERVER) == []
    assert kinds(made.handle(m.Tick(), 10), *SERVER) == []
    assert kinds(made.handle(remote(), 10), *SERVER) == ["Serve"]


def test_the_device_gate_counts_servers_and_containers_alike() -> None:
    """R7"""
    made = core(grant("a", memory=600), remote(memory=400))
    assert handed(made.handle(start("a"), 0))
    made.handle(grant("b", memory=1), 0)
    assert refusal(made.handle(start("b"), 0)) == "gpu-memory-full"
    second = core(grant("a", memory=600), start("a"))
    orders = second.handle(remote(memory=500), 0)
    assert (refusal(orders), kinds(orders, *SERVER)) == ("gpu-memory-full", [])
    second.handle(release("a"), 1)
    second.handle(ended("a"), 1)
    assert kinds(second.handle(m.Tick(), 1 + AGAIN_S), *SERVER) == ["Serve"]


def test_the_gpu_comes_back_only_when_nothing_of_the_server_runs() -> None:
    made = core(remote(), up())
    orders = made.handle(release("r"), 1)
    assert (kinds(orders, *SERVER), released(orders)) == (["EndServer"], [])
    assert made.occupied() == {"G0": (500, 0)}
    assert released(made.handle(m.ServerStillRuns("u-r", "main", "g-r"), 2)) == []
    assert kinds(made.handle(m.Tick(), 2 + AGAIN_S), *SERVER) == ["EndServer"]
    orders = made.handle(down(), 9)
    assert released(orders) == ["g-r"]
    assert isinstance(orders[0], m.Save)
    assert made.occupied() == {}
    # A tombstone: no late message starts it again.
    again = made.handle(remote(), 10)
    body = answer(again)
    assert isinstance(body, Accepted)
    assert (body.ok, body.dead, kinds(again, *SERVER)) == (False, True, [])


def test_the_kubelet_of_this_node_ends_no_server() -> None:
    """Its monitor sees no cgroup of a pod that is on another node."""
    made = core(remote(), up(), release("r"))
    assert made.containers() == ()
    assert released(made.handle(ended("r"), 1)) == []
    assert made.occupied() == {"G0": (500, 0)}


def test_a_server_that_ends_by_itself_is_started_again_and_its_pod_is_told() -> None:
    made = core(remote(), up())
    orders = made.handle(down(by_itself="it was killed by signal 9"), 1)
    (event,) = [e for e in events(orders) if isinstance(e, SliceImpaired)]
    assert (event.name, event.gpu, event.reason) == ("r", "G0", "server-ended")
    assert made.occupied() == {"G0": (500, 0)}
    assert kinds(made.handle(m.Tick(), 1 + AGAIN_S), *SERVER) == ["Serve"]
    assert events(made.handle(down(by_itself="again"), 2 + AGAIN_S)) == []  # it does not run yet


def test_an_end_by_itself_is_not_taken_for_the_end_that_was_ordered() -> None:
    """It may be of the process before: the answer to the order counts."""
    made = core(remote(), up(), release("r"))
    assert released(made.handle(down(by_itself="killed"), 1)) == []
    assert released(made.handle(down(), 2)) == ["g-r"]


def test_a_server_that_cannot_be_started_gives_its_grant_back_in_the_end() -> None:
    made = core(remote())
    failed = m.ServerStarted("u-r", "main", "g-r", "no port is free")
    orders = made.handle(failed, 0)
    assert refusal(orders) == "server-not-started"
    now, orders = 0.0, []
    while now < GIVE_UP_S and not kinds(orders, m.EndServer):
        now += AGAIN_S
        made.handle(m.Tick(), now)
        orders = made.handle(failed, now)
    assert now >= GIVE_UP_S
    (event,) = [e for e in events(made.handle(down(), now)) if isinstance(e, SliceReleased)]
    assert "no port is free" in event.reason


def test_a_reboot_gives_serving_grants_back_for_good() -> None:
    """What the client had on the GPU is gone, and nobody knows when the node serves again."""
    made = core(remote(), up(), grant("a", memory=100), start("a"))
    orders = made.handle(able("boot-2"), 5)
    assert [(e.grant_id, e.reason) for e in events(orders) if isinstance(e, SliceReleased)] == [("g-r", REBOOTED)]
    assert kinds(orders, *SERVER) == []
    assert handed(made.handle(start("a"), 6))


def test_a_gpu_that_is_gone_ends_its_server() -> None:
    made = core(remote(), up())
    orders = made.handle(able(gpus=("G1",)), 5)
    assert kinds(orders, *SERVER) == ["EndServer"]
    assert released(made.handle(down(), 6)) == ["g-r"]


def test_a_restarted_agent_takes_its_servers_over() -> None:
    after = restarted(core(remote(), up()))
    assert after.occupied() == {"G0": (500, 0)}
    assert kinds(after.handle(m.Tick(), 0), *SERVER) == ["FindServer"]
    assert kinds(after.handle(found(runs=True), 1), *SERVER) == []
    assert kinds(after.handle(m.Tick(), 100), *SERVER) == []
    after.handle(down(by_itself="killed"), 101)
    assert kinds(after.handle(m.Tick(), 101 + AGAIN_S), *SERVER) == ["Serve"]
    after = restarted(core(remote(), up(), release("r")))
    assert kinds(after.handle(m.Tick(), 0), *SERVER) == ["EndServer"]
    assert released(after.handle(down(), 1)) == ["g-r"]


def test_a_restarted_agent_starts_what_does_not_run() -> None:
    after = restarted(core(remote(), up()))
    after.handle(m.Tick(), 0)
    assert kinds(after.handle(found(runs=False), 1), *SERVER) == ["Serve"]


@pytest.mark.parametrize(
    "now_seen",
    [m.InventorySeen(inventory("boot-1", ("G0",)).inventory), m.InventorySeen(inventory("boot-1", ()).inventory)],
    ids=["it serves nothing new", "no GPU is reported"],
)
def test_a_server_that_runs_stays_although_it_could_not_start_now(now_seen: m.InventorySeen) -> None:
    """As after an upgrade whose interposer has not passed the canary yet: containers here run on too."""
    after = restarted(core(remote(), up()))
    orders = after.handle(now_seen, 0) + after.handle(found(runs=True), 1)
    for second in range(2, round(2 * GIVE_UP_S)):
        orders += after.handle(m.Tick(), second)
    assert (kinds(orders, *SERVER), refusals(orders), released(orders)) == (["FindServer"], [], [])
    assert after.occupied() == {"G0": (500, 0)}


def test_a_server_that_is_looked_for_and_released_is_ended() -> None:
    after = restarted(core(remote(), up()))
    after.handle(m.Tick(), 0)
    assert kinds(after.handle(release("r"), 1), *SERVER) == ["EndServer"]
    assert kinds(after.handle(found(runs=True), 2), *SERVER) == []
    assert released(after.handle(down(), 3)) == ["g-r"]


def test_a_new_leader_learns_what_serves_and_an_unknown_grant_starts_nothing() -> None:
    made = core(remote(), up(), remote("s", memory=100))
    body = answer(made.handle(sync(term=2), 1))
    assert isinstance(body, NodeSyncAnswer)
    assert {(one.uid, one.container, one.strategy, tuple(one.gpus.items())) for one in body.live} == {
        ("u-r", "main", "advisory", (("G0", (500, 0)),)),
        ("u-s", "main", "advisory", (("G0", (100, 0)),)),
    }
    late = made.handle(remote("t"), 2)  # of term 1, which is closed
    assert (accepted(late), kinds(late, *SERVER)) == (False, [])


def test_a_node_that_serves_nothing_starts_no_server() -> None:
    orders = agent().handle(remote(), 0)
    assert (refusal(orders), kinds(orders, *SERVER)) == ("remote-not-offered", [])


# --- the node of the container ----------------------------------------------------------------------------------


def test_a_client_is_handed_the_address_and_takes_nothing_of_its_own_node() -> None:
    made = core(remote(end=CLIENT, memory=10**6))
    orders = made.handle(start("r"), 0)
    (order,) = [order for order in orders if isinstance(order, m.HandOver)]
    assert order.remote == CLIENT
    assert events(orders) == []  # the node of the GPU reports the slice
    assert (made.occupied(), made.live()) == ({}, ())
    assert [one.uid for one in made.containers()] == ["u-r"]


def test_a_node_without_gpus_can_be_a_client() -> None:
    made = Agent(NODE)
    made.handle(m.InventorySeen(Inventory(node=NODE, boot_id="b", remote=RemoteAbility(client=True))), 0)
    made.handle(sync(), 0)
    made.handle(remote(end=CLIENT), 0)
    assert handed(made.handle(start("r"), 0))


def test_a_node_that_cannot_use_gpus_of_others_refuses() -> None:
    made = agent(able(client=False), remote(end=CLIENT))
    assert refusal(made.handle(start("r"), 0)) == "remote-not-offered"


@pytest.mark.parametrize("runs", [True, False])
def test_a_clients_release_waits_for_its_container_alone(runs: bool) -> None:
    made = core(remote(end=CLIENT), *((start("r"),) if runs else ()))
    orders = made.handle(release("r"), 1)
    assert released(orders) == ([] if runs else ["g-r"])
    if runs:
        orders = made.handle(ended("r"), 2)
        assert released(orders) == ["g-r"]
        assert kinds(orders, m.ClientEnded) == ["ClientEnded"]
    assert kinds(orders, *SERVER) == []


def test_a_client_that_a_sync_does_not_name_is_released_by_itself_and_not_reported_as_live() -> None:
    """It takes no GPU of its node. Were it booked there, its end would free the GPU of another node."""
    made = core(remote(end=CLIENT), start("r"))
    body = answer(made.handle(sync(term=2), 1))
    assert isinstance(body, NodeSyncAnswer)
    assert body.live == ()
    assert refusal(made.handle(start("r"), 2)) == "grant-leaving"
    assert released(made.handle(ended("r"), 3)) == ["g-r"]


def test_a_sync_that_a_grant_has_overtaken_ends_no_client() -> None:
    """Found by tests/sim: the sync was sent before the pod was seen bound, and came after its grant."""
    late = msgspec.structs.replace(node_grant(end=CLIENT), number=5)
    made = core(m.GrantReceived(late))
    made.handle(m.SyncReceived(NodeSync(term=1, node=NODE, number=4)), 1)
    assert handed(made.handle(start("r"), 2))
    made.handle(m.SyncReceived(NodeSync(term=1, node=NODE, number=3)), 3)
    assert handed(made.handle(start("r"), 4))
    made.handle(m.SyncReceived(NodeSync(term=1, node=NODE, number=6)), 5)
    assert refusal(made.handle(start("r"), 6)) == "grant-leaving"


def test_another_address_reaches_the_next_start() -> None:
    made = core(remote(end=CLIENT), start("r"))
    moved = RemoteEnd(role="client", peer=PEER, address="10.0.0.2:9")
    assert accepted(made.handle(remote(end=moved), 1))
    (order,) = [order for order in made.handle(start("r"), 2) if isinstance(order, m.HandOver)]
    assert order.remote == moved


def test_gpus_of_a_node_are_described_alike_for_both() -> None:
    """A share names the node of its GPU: a client never takes a GPU of its own that has the same UUID."""
    made = core(remote(end=CLIENT), start("r"))
    made.handle(m.InventorySeen(Inventory(node=NODE, boot_id="boot-1", gpus=(_gpu(),))), 1)
    assert made.occupied() == {}


def _gpu() -> Gpu:
    return Gpu(uuid="G0", index=0, model="X", memory_mib=100)
