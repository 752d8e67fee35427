"""Network cards: which pod gets which, that none is given to too many, and what a pod without one is told."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from services.placement import messages as m
from shared.contracts.node_commands import LiveSlice, NodeSyncAnswer
from shared.model.gpu import Inventory, Nic, PcieLevel
from shared.model.grant import Grant, decode_grant, encode_grant
from shared.model.objects import Pod
from shared.model.request import RequestError
from shared.model.request_reader import read_request
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.whatif import end, run, why

NIC = "kerf.dev/nic"


def card(number: int, verbs: bool = True, pods: int = 1, **near: PcieLevel) -> Nic:
    """A card and how near GPUs are, as g0="single"."""
    return Nic(
        name=f"mlx5_{number}",
        pcie={int(gpu[1:]): level for gpu, level in near.items()},
        verbs=f"uverbs{number}" if verbs else "",
        pods=pods,
    )


def pod(name: str, cards: str = "1", **request: Any) -> Pod:
    return build.gpu_pod(name, annotations={NIC: cards}, **(request or {"gpus": 1}))


def grant_of(placement: Placement, name: str) -> Grant:
    return decode_grant(placement.binds()[f"uid-team-{name}"].grant)


def gpus_of(grant: Grant) -> list[str]:
    return [share.uuid for container in grant.containers.values() for share in container.gpus]


TWO_SWITCHES = (card(0, g0="single", g1="single", g2="node"), card(1, g2="single", g3="single", g0="node"))


@pytest.mark.parametrize(
    ("cards", "wanted"),
    [
        ((card(0, g0="node"), card(1, g0="single")), "mlx5_1"),
        ((card(0), card(1, g0="node")), "mlx5_1"),
        ((card(0, g0="hostbridge"), card(1, g0="multiple")), "mlx5_1"),
        ((card(0, g0="node"), card(1, g0="node")), "mlx5_0"),
        ((card(0, verbs=False, g0="single"), card(1)), "mlx5_1"),
    ],
    ids=["switch before NUMA node", "NUMA node before another", "switches before a bridge", "by name", "verbs only"],
)
def test_a_pod_gets_the_card_nearest_to_its_gpus(cards: tuple[Nic, ...], wanted: str) -> None:
    placement = Placement().nodes("n", gpus=1, nics=cards)
    placement.place(pod("p"))
    assert grant_of(placement, "p").nics == (wanted,)


def test_a_pod_gets_gpus_beside_a_free_card() -> None:
    """The first pod takes the card of the first switch; the second one's GPU is below the other, whatever the order of
    the policy."""
    placement = Placement().nodes("n", gpus=4, nics=TWO_SWITCHES)
    placement.place(pod("a"), pod("b"))
    pairs = {(gpus_of(grant_of(placement, name))[0], *grant_of(placement, name).nics) for name in "ab"}
    assert {(int(gpu[-1]) // 2, nic) for gpu, nic in pairs} == {(0, "mlx5_0"), (1, "mlx5_1")}


def test_several_cards_are_spread_over_the_gpus() -> None:
    far = card(2, g0="multiple", g1="multiple")
    placement = Placement().nodes("n", gpus=4, nics=(*TWO_SWITCHES, far))
    placement.place(pod("p", "2", gpus=4))
    assert grant_of(placement, "p").nics == ("mlx5_0", "mlx5_1")


def test_a_card_is_given_to_one_pod_until_its_node_releases_the_grant() -> None:
    placement = Placement().nodes("n", gpus=4, nics=(card(0),))
    (first,) = run(placement, pod("a"))
    assert placement.place(pod("b"), build.gpu_pod("without", gpus=1)) == {"without": "n"}
    placement.gone(first)
    assert "uid-team-b" not in placement.binds(), "the pod is gone, and its node still has its slice"
    (held,) = [held for held in placement.core.book.grants.values() if held.grant.nics]
    placement.send(m.ReleaseSeen("n", held.grant_id))
    placement.tick(2.0)
    assert grant_of(placement, "b").nics == ("mlx5_0",)


def test_as_many_pods_share_a_card_as_its_node_allows() -> None:
    placement = Placement().nodes("n", gpus=4, nics=(card(0, pods=2, g0="single"), card(1, pods=2, g0="single")))
    placed = placement.place(*(pod(f"p{i}", memory="1Gi") for i in range(5)))
    assert len(placed) == 4
    assert Counter(grant_of(placement, name).nics for name in placed) == {("mlx5_0",): 2, ("mlx5_1",): 2}


def test_a_new_leader_counts_what_bound_pods_have() -> None:
    placement = Placement().nodes("n", gpus=4, nics=(card(0),))
    bound = run(placement, pod("a"))
    heir = Placement(build.node("n"), *bound)
    heir.send(m.InventorySeen(build.inventory("n", gpus=4, nics=(card(0),))))
    assert heir.place(pod("b")) == {}


def test_a_new_leader_counts_what_a_container_has_whose_pod_is_gone() -> None:
    """The pod was deleted by force, or with its node, which came back: only the agent knows its container."""
    bound = Placement().nodes("n", gpus=4, nics=(card(0),))
    (first,) = run(bound, pod("a"))
    grant = grant_of(bound, "a")
    (container,) = grant.containers
    share = grant.containers[container].gpus[0]
    live = LiveSlice(
        uid=first.metadata.uid,
        namespace="team",
        name="a",
        container=container,
        grant_id="63-1",
        strategy="exclusive",
        gpus={share.uuid: (share.memory_mib, share.compute_milli)},
        nics=grant.nics,
    )
    heir = Placement(build.node("n"))
    heir.answer = False
    heir.send(m.InventorySeen(build.inventory("n", gpus=4, nics=(card(0),))))
    heir.answer = True
    heir.send(
        m.SyncAnswered(NodeSyncAnswer(node="n", boot_id="boot-1", term=heir.core.term, accepted=True, live=(live,)))
    )
    assert heir.place(pod("b"), build.gpu_pod("without", gpus=1)) == {"without": "n"}
    heir.send(m.ReleaseSeen("n", live.grant_id))
    heir.tick(2.0)
    assert grant_of(heir, "b").nics == ("mlx5_0",)


def test_a_pod_never_comes_to_a_node_whose_agent_reports_no_verbs() -> None:
    """Agents before 0.2.0 do not know cards: they report no device nodes, and would hand over none."""
    placement = Placement().nodes("old", gpus=4, nics=(card(0, verbs=False),)).nodes("new", gpus=1, nics=(card(0),))
    assert placement.place(pod("a"), pod("b")) == {"a": "new"}


def test_the_pods_of_a_gang_get_different_cards_or_none_starts() -> None:
    gang = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3", NIC: "1"}
    members = [build.gpu_pod(f"g{i}", gpus=1, annotations=gang) for i in range(3)]
    placement = Placement().nodes("n", gpus=4, nics=TWO_SWITCHES)
    assert placement.place(*members) == {}
    placement.nodes("o", gpus=4, nics=TWO_SWITCHES)
    placement.tick(2.0)
    assert {name: len(grant_of(placement, name).nics) for name in ("g0", "g1", "g2")} == {"g0": 1, "g1": 1, "g2": 1}
    by_node = Counter((placement.binds()[f"uid-team-g{i}"].node, *grant_of(placement, f"g{i}").nics) for i in range(3))
    assert max(by_node.values()) == 1


@pytest.mark.parametrize("seed", range(8))
def test_no_card_is_ever_given_to_more_pods_than_it_may_have(seed: int) -> None:
    """Pods come and go at random; what the nodes have not released counts."""
    rng = random.Random(seed)
    cards = tuple(card(i, pods=rng.choice((1, 2)), **{f"g{i}": "single"}) for i in range(3))
    placement = Placement().nodes("n", "o", gpus=4, nics=cards)
    alive: list[Pod] = []
    for number in range(60):
        if alive and rng.random() < 0.4:
            end(placement, alive.pop(rng.randrange(len(alive))))
        else:
            made = pod(f"p{number}", str(rng.choice((1, 1, 2))), memory=rng.choice(("1Gi", "30Gi")))
            if made.metadata.name in placement.place(made):
                alive.append(placement.bind(made))
        for node in placement.core.book.nodes.values():
            taken = Counter(name for held in node.grants.values() for name in held.grant.nics)
            assert all(taken[nic.name] <= nic.pods for nic in cards), taken


def test_a_node_without_cards_is_named_as_the_reason_with_what_helps() -> None:
    placement = Placement().nodes("n", gpus=1, nics=(card(0, verbs=False),))
    placement.place(pod("p"))
    found = why(placement, "p")
    assert [reason.code for reason in found.nodes[0].reasons] == ["no-nic"]
    assert "none with an active port" in found.nodes[0].reasons[0].sentence
    assert [(one.code, one.sentence) for one in found.counterfactuals] == [("nic", f"drop {NIC}")]


def test_cards_that_other_pods_have_are_named_with_these_pods() -> None:
    placement = Placement().nodes("n", gpus=4, nics=(card(0), card(1)))
    run(placement, pod("a"))
    placement.place(pod("p", "2"))
    found = why(placement, "p")
    (reason,) = found.nodes[0].reasons
    assert reason.code == "nic-taken"
    assert "1 of the node's 2 are free (mlx5_0 given to team/a)" in reason.sentence
    assert [one.sentence for one in found.counterfactuals] == [f"fits with {NIC}: 1"]


@pytest.mark.parametrize("text", ["0", "01", "65", "-1", "mlx5_0", ""])
def test_an_annotation_that_is_no_number_of_cards_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="number of network cards") as refused:
        read_request(pod("p", text))
    assert refused.value.code == "bad-annotation"


def test_a_grant_without_cards_is_written_as_before_and_one_of_before_is_read() -> None:
    """Agents and leaders before 0.2.0 do not know the field and ignore it. Such agents report no verbs, so pods with
    cards never come to their nodes."""
    assert "nics" not in json.loads(encode_grant(Grant(grant_id="1-1", term=1)))
    assert decode_grant('{"grant_id":"1-1","term":1}').nics == ()
    assert decode_grant(encode_grant(Grant(grant_id="1-1", term=1, nics=("mlx5_0",)))).nics == ("mlx5_0",)
    assert Inventory(node="n", boot_id="b", nics=(Nic(name="eth0"),)).nics[0].verbs == ""
