"""Which pairs of nodes are measured: few of each rack, the same ones each time, and spread over the rack."""

from __future__ import annotations

import msgspec

from services.placement import messages as m
from services.placement.queries.remote_peers import PEERS_A_RACK, remote_peers
from shared.contracts.queries import RemotePeersQuery
from shared.model import names
from shared.model.network import RemoteAbility
from tests.support import build
from tests.support.harness.placement import Placement


def site(racks: int, nodes: int) -> Placement:
    placement = Placement()
    for rack in range(racks):
        for number in range(nodes):
            name = f"n-{rack}-{number}"
            placement.facts(build.node(name, labels={names.LABEL_RACK: f"r{rack}"}))
            ability = RemoteAbility(address=f"{name}:1")
            placement.send(m.InventorySeen(msgspec.structs.replace(build.inventory(name, gpus=1), remote=ability)))
    return placement


def peers(placement: Placement, node: str) -> list[str]:
    return [peer.node for peer in remote_peers(placement.core, RemotePeersQuery(node=node)).peers]


def test_a_node_measures_a_few_of_each_rack_and_not_itself() -> None:
    placement = site(5, 20)
    for node in ("n-0-0", "n-3-7"):
        found = peers(placement, node)
        assert node not in found
        assert len(found) == 5 * PEERS_A_RACK
        assert {name.split("-")[1] for name in found} == set("01234")
        assert peers(placement, node) == found


def test_the_nodes_of_a_rack_are_measured_about_equally_often() -> None:
    placement = site(2, 20)
    counts: dict[str, int] = {}
    for number in range(20):
        for peer in peers(placement, f"n-0-{number}"):
            counts[peer] = counts.get(peer, 0) + 1
    assert len([name for name in counts if name.startswith("n-1-")]) >= 12
    assert max(counts.values()) <= 8


def test_a_node_that_comes_changes_few_pairs() -> None:
    before, after = site(2, 20), site(2, 21)
    changed = sum(peers(before, f"n-0-{i}") != peers(after, f"n-0-{i}") for i in range(20))
    assert changed <= 10


def test_only_nodes_that_serve_are_measured() -> None:
    placement = site(1, 3)
    placement.send(m.InventorySeen(build.inventory("n-0-1", gpus=1, generation=2)))
    assert peers(placement, "n-0-0") == ["n-0-2"]
    assert remote_peers(placement.core, RemotePeersQuery(node="x")).error == "there is no node x"
