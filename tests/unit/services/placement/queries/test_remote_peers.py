"""Which nodes an agent measures: few of each rack, near ones first, and all of them by some agent."""

from __future__ import annotations

import msgspec
import pytest

from services.placement import messages as m
from services.placement.queries.remote_peers import MOST, PER_RACK, remote_peers, sample
from shared.book.states import UNANSWERED
from shared.contracts.queries import RemotePeersQuery
from shared.model.network import RemoteAbility
from tests.support import build
from tests.support.harness.placement import Placement

RACKS = {f"s{i}": f"r{i % 10}" for i in range(100)} | {f"c{i}": f"r{i % 10}" for i in range(200)}
SERVING = [name for name in RACKS if name.startswith("s")]


def test_of_each_rack_are_so_many_and_its_own_come_first() -> None:
    chosen = sample("c3", SERVING, RACKS)
    by_rack = [RACKS[name] for name in chosen]
    assert {rack: by_rack.count(rack) for rack in by_rack} == {f"r{i}": PER_RACK for i in range(10)}
    assert by_rack[:PER_RACK] == ["r3"] * PER_RACK


def test_the_same_node_measures_the_same_others_and_not_itself() -> None:
    assert sample("s3", SERVING, RACKS) == sample("s3", list(reversed(SERVING)), RACKS)
    assert "s3" not in sample("s3", SERVING, RACKS)


def test_together_the_nodes_measure_every_serving_node() -> None:
    assert {chosen for i in range(200) for chosen in sample(f"c{i}", SERVING, RACKS)} == set(SERVING)


def test_however_many_racks_there_are_the_probes_are_bounded() -> None:
    racks = {f"s{i}": f"r{i}" for i in range(1000)}
    assert len(sample("c", list(racks), racks | {"c": "r1"})) == MOST


def seen(placement: Placement) -> None:
    """A node that serves, one that uses GPUs of others, and one that does neither."""
    for name, ability in (
        ("s", RemoteAbility(address="s:1")),
        ("c", RemoteAbility(client=True)),
        ("n", RemoteAbility()),
    ):
        placement.facts(build.node(name))
        inventory = build.inventory(name, gpus=1 if name == "s" else 0)
        placement.send(m.InventorySeen(msgspec.structs.replace(inventory, remote=ability)))


@pytest.mark.parametrize("unanswered", [("s",), ("c",), ("s", "c")])
def test_nodes_that_another_leader_has_not_heard_of_yet_are_measured_on(unanswered: tuple[str, ...]) -> None:
    """Else their agents delete what they have measured, and pods of them get no GPU of other nodes for minutes."""
    placement = Placement()
    seen(placement)
    for name in unanswered:
        placement.core.book.set_agent_trouble(name, UNANSWERED)
    answer = remote_peers(placement.core, RemotePeersQuery(node="c"))
    assert ([(peer.node, peer.address) for peer in answer.peers], answer.error) == ([("s", "s:1")], "")
    placement.core.book.set_agent_trouble("s", "its agent has been silent for more than 10 s")
    assert remote_peers(placement.core, RemotePeersQuery(node="c")).peers == ()


def test_a_leader_that_has_just_begun_says_that_there_may_be_others() -> None:
    placement = Placement(begins=False)
    assert remote_peers(placement.core, RemotePeersQuery(node="c")).error


def test_a_node_whose_pods_use_no_other_nodes_gpu_measures_nothing() -> None:
    placement = Placement()
    seen(placement)
    ask = lambda node: [peer.node for peer in remote_peers(placement.core, RemotePeersQuery(node=node)).peers]  # noqa: E731
    assert (ask("c"), ask("n"), ask("nobody")) == (["s"], [], [])
