"""Gangs with subgroups through the real core: minima and topology of each part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.placement import messages as m
from services.placement.scheduling.gangs import domains
from services.placement.scheduling.gangs.domains import Level
from shared.book.book import Book
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.placement import Placement
from tests.unit.services.placement.scheduling.gangs.members import RACK, decided, racks, why

ZONE = "topology.kubernetes.io/zone"


def part(name: str, subgroup: str, tree: str, *, gpus: int = 1, **rest: Any) -> Pod:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-subgroups": tree, "kerf.dev/gang-subgroup": subgroup}
    return build.gpu_pod(name, gpus=gpus, annotations=notes, **rest)


def parts(tree: str, **counts: int) -> list[Pod]:
    """Pods by subgroup; `a_b` is subgroup a/b."""
    return [
        part(f"{name.replace('_', '-')}-{i}", name.replace("_", "/"), tree)
        for name, count in counts.items()
        for i in range(count)
    ]


def test_many_workers_do_not_begin_without_their_head() -> None:
    placement = Placement().nodes("n1", "n2", gpus=4)
    tree = "head=1,workers=2"
    assert placement.place(*parts(tree, workers=4)) == {}
    reason = why(placement, "workers-0")
    assert "0 of the 1 pod of subgroup head" in reason.sentence
    assert "create 1 more of head" in reason.helps[0]
    assert reason.gang is not None
    assert {one.name: (one.members, one.minimum) for one in reason.gang.subgroups} == {
        "head": (0, 1),
        "workers": (4, 2),
    }
    placement.facts(*parts(tree, head=1))
    assert len(placement.binds()) == 5


def test_the_head_and_the_least_of_the_workers_are_in_one_record_and_the_others_follow() -> None:
    placement = Placement().nodes("n1", gpus=4)
    placed = placement.place(*parts("head=1,workers=2", head=1, workers=5))
    assert len(placed) == 4
    assert {"head-0", "workers-0", "workers-1"} <= set(decided(placement)[0])


def test_if_one_subgroup_finds_no_room_none_is_placed() -> None:
    placement = Placement().nodes("n1", gpus=4)
    before = placement.core.book.digest()
    pods = [*parts("head=1,workers=2", workers=2), part("head-0", "head", "head=1,workers=2", gpus=8)]
    assert placement.place(*pods) == {}
    assert placement.core.book.digest() == before
    assert "there is room for 0 of the 1 pod of subgroup head" in why(placement, "workers-0").sentence


def test_each_subgroup_is_in_a_rack_of_its_own_choice() -> None:
    placement = racks(Placement(), a1="r1", a2="r1", b1="r2", c1="r3")
    tree = "x=6@rack,y=3@rack"
    placed = placement.place(*parts(tree, x=6, y=3))
    assert {node[0] for name, node in placed.items() if name.startswith("x")} == {"a"}
    assert len({node[0] for name, node in placed.items() if name.startswith("y")}) == 1


def test_a_choice_that_leaves_no_room_for_a_sibling_is_undone() -> None:
    """Zone z1 has room for all of x, but then for none of y."""
    placement = Placement()
    for name, zone, rack, gpus in (
        ("a", "z1", "r1", 4),
        ("b", "z1", "r2", 1),
        ("c", "z2", "r3", 4),
        ("d", "z2", "r4", 4),
    ):
        placement.facts(build.node(name, labels={ZONE: zone, RACK: rack}))
        placement.send(m.InventorySeen(build.inventory(name, gpus=gpus)))
    placed = placement.place(*parts("all/x=4@rack,all/y=4@rack,all@zone", all_x=4, all_y=4))
    assert set(placed.values()) == {"c", "d"}
    assert {node for name, node in placed.items() if name.startswith("all-x")} in ({"c"}, {"d"})
    assert placement.place(build.gpu_pod("other", gpus=4)) == {"other": "a"}, "nothing is held where it was tried first"


def test_a_subgroup_without_a_domain_leaves_the_only_rack_to_the_one_that_needs_it() -> None:
    """Both have members of two GPUs. Found by the simulation (seed 6795): the gang waited although it fitted."""
    placement = Placement()
    for name, rack, gpus in (("a", "r1", 3), ("b", "r2", 2), ("c", "r3", 2)):
        placement.facts(build.node(name, labels={RACK: rack}))
        placement.send(m.InventorySeen(build.inventory(name, gpus=gpus)))
    assert placement.place(build.gpu_pod("half", compute=50, annotations={"kerf.dev/gpu-uuid": "a-gpu-2"})) == {
        "half": "a"
    }
    tree = "head=1,workers=2@rack"
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-subgroups": tree, "kerf.dev/gang-subgroup": "workers"}
    small = build.gpu_pod("small", compute=50, annotations=notes)
    placed = placement.place(part("head", "head", tree, gpus=2), part("large", "workers", tree, gpus=2), small)
    assert (placed["large"], placed["small"]) == ("a", "a")
    assert placed["head"] in ("b", "c")


def test_the_domains_of_a_label_are_looked_up_once_for_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes through all nodes, and an attempt asks for each subgroup in each domain of its parent."""
    looked_up: list[str] = []

    class Counting(Level):
        def __init__(self, label: str, book: Book) -> None:
            looked_up.append(label)
            super().__init__(label, book)

    placement = racks(Placement(), a="r1", b="r2", c="r3")
    monkeypatch.setattr(domains, "Level", Counting)
    assert len(placement.place(*parts("x=4@rack,y=4@rack,z=4@rack", x=4, y=4, z=4))) == 12
    assert looked_up == [RACK]


def test_a_pod_above_the_minimum_stays_in_the_rack_of_its_subgroup() -> None:
    placement = racks(Placement(), a="r1", b="r2")
    tree = "x=2@rack,y=3@rack"
    placed = placement.place(*parts(tree, x=2, y=3))
    where = {name[0]: node for name, node in placed.items()}
    assert where["x"] != where["y"]
    assert placement.place(part("x-2", "x", tree)) == {"x-2": where["x"]}, "y's rack has less room"


def test_a_gang_ends_as_a_whole_where_a_subgroup_would_fall_below_its_minimum() -> None:
    placement = Placement().nodes("n1", gpus=8)
    pods = parts("head=1,workers=2", head=1, workers=3)
    placement.place(*pods)
    for pod in pods:
        placement.bind(pod)
    gangs = placement.core.gangs
    uid = {pod.metadata.name: pod.metadata.uid for pod in pods}
    assert gangs.must_end_with(uid["workers-2"]) == [uid["workers-2"]]
    assert set(gangs.must_end_with(uid["head-0"])) == set(uid.values())
    assert set(gangs.must_end_with(uid["workers-1"], {uid["workers-2"]})) == set(uid.values()) - {uid["workers-2"]}
    assert gangs.must_end_with(uid["workers-1"], {uid["workers-1"], uid["workers-2"]}) == [uid["workers-1"]]
    assert gangs.can_spare(uid["workers-0"], ())
    assert not gangs.can_spare(uid["head-0"], ())
    assert gangs.broken_by({uid["head-0"]}) is not None
    assert gangs.broken_by({uid["workers-0"]}) is None


def test_a_pod_that_ends_anyway_takes_no_other_along() -> None:
    placement = Placement().nodes("n1", gpus=8)
    pods = parts("head=1,workers=2", head=1, workers=3)
    placement.place(*pods)
    for pod in pods:
        placement.bind(pod)
    last = pods[-1].metadata.uid
    placement.core.gangs.going.add(last)
    placement.core.gangs.see(placement.core.book.pods[last], placement.now)
    assert placement.core.gangs.must_end_with(last) == [last]


TREE = "a/x=1,a/y=2@rack,b=2"
LEAVES = ("a/x", "a/y", "b")


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(LEAVES), st.integers(1, 3)), min_size=1, max_size=12),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_it_begins_with_all_of_its_minima_or_not_at_all(wanted: list[tuple[str, int]], nodes: list[int]) -> None:
    placement = Placement()
    for i, gpus in enumerate(nodes):
        placement.facts(build.node(f"n{i}", labels={RACK: f"r{i % 2}"}))
        placement.send(m.InventorySeen(build.inventory(f"n{i}", gpus=gpus)))
    pods = [part(f"p{i}", leaf, TREE, gpus=gpus) for i, (leaf, gpus) in enumerate(wanted)]
    leaf_of = {f"p{i}": leaf for i, (leaf, _) in enumerate(wanted)}
    placed = placement.place(*pods)
    assert placement.core.book.overbooked() == []
    if not placed:
        return
    first = [leaf_of[name] for name in decided(placement)[0]]
    assert [first.count(leaf) >= least for leaf, least in zip(LEAVES, (1, 2, 2), strict=True)] == [True] * 3
    labels = {
        placement.core.book.nodes[node].object.metadata.labels[RACK]  # type: ignore[union-attr]
        for name, node in placed.items()
        if leaf_of[name] == "a/y"
    }
    assert len(labels) == 1
