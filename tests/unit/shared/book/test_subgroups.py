from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.book.subgroups import broken, count, covers, is_satisfied, lacking, steps
from shared.model.subgroup import Subgroup


def leaf(name: str, minimum: int) -> Subgroup:
    return Subgroup(name=name, minimum=minimum)


RAY = Subgroup(subgroups=(leaf("head", 1), leaf("workers", 4)))
REPLICAS = Subgroup(
    min_subgroups=1,
    subgroups=(
        Subgroup(name="r1", subgroups=(leaf("r1-prefill", 1), leaf("r1-decode", 2))),
        Subgroup(name="r2", subgroups=(leaf("r2-prefill", 1), leaf("r2-decode", 2))),
    ),
)


def test_many_workers_do_not_stand_for_the_head() -> None:
    assert not is_satisfied(RAY, {"workers": 5})
    assert is_satisfied(RAY, {"head": 1, "workers": 4})
    assert lacking(RAY, {"workers": 1}, {}) == {"head": 1, "workers": 3}


def test_of_several_choices_the_one_whose_pods_wait_is_taken() -> None:
    assert lacking(REPLICAS, {}, {"r2-prefill": 1, "r2-decode": 3}) == {"r2-prefill": 1, "r2-decode": 2}
    assert lacking(REPLICAS, {"r1-decode": 2}, {"r1-prefill": 1, "r2-prefill": 1, "r2-decode": 2}) == {"r1-prefill": 1}


def test_a_minimum_of_the_whole_is_filled_from_any_subgroup_with_more_pods() -> None:
    volcano = Subgroup(minimum=6, subgroups=(leaf("ps", 1), leaf("worker", 2)))
    assert lacking(volcano, {}, {"ps": 2, "worker": 3, "": 4}) == {"ps": 2, "worker": 3, "": 1}
    assert lacking(volcano, {}, {"ps": 1, "worker": 2}) == {"ps": 4, "worker": 2}, "too few wait"


def test_before_it_is_satisfied_there_is_one_step() -> None:
    assert steps(RAY, {}, {"head": 1, "workers": 9}, {}) == [{"head": 1, "workers": 4}]
    assert steps(RAY, {}, {"workers": 9}, {}) == [{"head": 1, "workers": 4}], "it waits for the head"


def test_once_it_has_begun_it_does_not_wait_for_pods_that_do_not_exist() -> None:
    placed = {"workers": 4}
    assert steps(RAY, placed, {"workers": 1}, placed) == []
    assert steps(RAY, {"head": 1, "workers": 1}, {"workers": 2}, {"head": 1, "workers": 1}) == [{"workers": 2}]


def test_pods_that_are_placed_elsewhere_are_no_beginning() -> None:
    assert steps(RAY, {"head": 1}, {"workers": 2}, {}) == [{"workers": 4}]


def test_further_pods_come_one_by_one_and_further_subgroups_as_a_whole() -> None:
    has = {"r1-prefill": 1, "r1-decode": 2}
    waiting = {"r1-decode": 1, "r2-prefill": 1, "r2-decode": 2, "": 1}
    assert steps(REPLICAS, has, waiting, has) == [{"": 1}, {"r1-decode": 1}, {"r2-prefill": 1, "r2-decode": 2}]


def test_the_topmost_subgroup_that_loses_its_minimum_is_broken() -> None:
    both = {"r1-prefill": 1, "r1-decode": 2, "r2-prefill": 1, "r2-decode": 2}
    assert broken(REPLICAS, both, both | {"r2-decode": 1}, both) is not None
    found = broken(REPLICAS, both, both | {"r2-decode": 1}, both)
    assert found is not None
    assert found.name == "r2"
    first = {"r1-prefill": 1, "r1-decode": 2}
    assert broken(REPLICAS, both, first, first) is None, "r2 is gone as a whole"
    assert broken(REPLICAS, both, {}, {}) is None
    four = {"head": 1, "workers": 4}
    assert broken(RAY, {"head": 1, "workers": 5}, four, four) is None


def test_a_subgroup_of_which_only_pods_of_another_scheduler_run_on_is_not_broken() -> None:
    before = {"head": 1, "workers": 4}
    assert broken(RAY, before, {"head": 1}, {}) is None
    assert broken(RAY, before, {"head": 1, "workers": 1}, {"workers": 1}) is not None


@pytest.mark.parametrize(("tree", "least"), [
    (RAY, 5),
    (REPLICAS, 3),
    (Subgroup(minimum=9, subgroups=RAY.subgroups), 9),
    (Subgroup(minimum=2), 2),
])  # fmt: skip
def test_the_least_number_of_pods_with_which_it_starts(tree: Subgroup, least: int) -> None:
    assert tree.least == least


def test_the_path_to_a_leaf() -> None:
    assert [one.name for one in REPLICAS.path("r2-decode")] == ["", "r2", "r2-decode"]
    assert [one.name for one in REPLICAS.path("unknown")] == [""]


NAMES = ("a", "b", "c", "d")
NUMBERS = st.dictionaries(st.sampled_from((*NAMES, "")), st.integers(0, 4))


@st.composite
def trees(draw: st.DrawFn) -> Subgroup:
    leaves = [leaf(name, draw(st.integers(0, 3))) for name in NAMES]
    pair = Subgroup(name="pair", subgroups=tuple(leaves[:2]), min_subgroups=draw(st.integers(0, 2)))
    top = (pair, *leaves[2:])
    return Subgroup(minimum=draw(st.integers(0, 8)), subgroups=top, min_subgroups=draw(st.integers(0, 3)))


@given(trees(), NUMBERS, NUMBERS)
def test_what_it_lacks_satisfies_it(tree: Subgroup, has: dict[str, int], waiting: dict[str, int]) -> None:
    lacks = lacking(tree, has, waiting)
    after = {name: has.get(name, 0) + lacks.get(name, 0) for name in (*NAMES, "")}
    assert is_satisfied(tree, after)
    assert (not lacks) == is_satisfied(tree, has)
    assert sum(after.values()) >= tree.least


@given(trees(), NUMBERS, NUMBERS)
def test_a_step_that_the_waiting_pods_cover_begins_a_gang_with_all_that_it_needs(
    tree: Subgroup, elsewhere: dict[str, int], waiting: dict[str, int]
) -> None:
    for step in steps(tree, elsewhere, waiting, {}):
        if covers(waiting, step):
            assert step
            assert all(step.values())
            after = {name: elsewhere.get(name, 0) + step.get(name, 0) for name in (*NAMES, "")}
            assert is_satisfied(tree, after)


@given(st.integers(1, 6), st.integers(0, 8), st.integers(0, 8), st.booleans())
def test_a_gang_without_subgroups_is_counted_as_before(minimum: int, has: int, waits: int, begun: bool) -> None:
    """The rule that gangs had before there were subgroups, in one line."""
    placed = has if begun else 0
    lacks = max(1, minimum - has)
    need = min(lacks, waits) if placed else lacks
    found = steps(Subgroup(minimum=minimum), {"": has}, {"": waits}, {"": placed})
    gathered = [sum(one.values()) for one in found if covers({"": waits}, one)]
    assert gathered == ([need] if 0 < need <= waits else [])
    assert count(Subgroup(minimum=minimum), {"": has}) == has
