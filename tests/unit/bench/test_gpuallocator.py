"""The modes of go-gpuallocator that bench.topology compares with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.gpuallocator.best_effort import best_effort, choose_best_effort
from bench.gpuallocator.simple import choose_simple
from bench.gpuallocator.static_dgx1 import PASCAL, VOLTA, static_set
from bench.topologies import machines
from bench.topology import CASES, conformance
from shared.model.gpu import Gpu, Inventory, Link
from shared.scheduling.topology import Choice, choose_gpus, fabric_of

MACHINES = machines()


def choice_of(size: int, *places: int) -> Choice:
    mask = sum(1 << place for place in places)
    return Choice(size=size, fitting=mask, idle=mask)


def test_the_modes_of_go_gpuallocator_keep_all_its_cases() -> None:
    assert conformance(json.loads(CASES.read_text()))["failed"] == []


def test_a_case_that_fails_is_reported() -> None:
    case = {"kind": "single", "policy": "simple", "available": [0, 1], "size": 1, "expected": [1]}
    answer = conformance({"topologies": {}, "cases": [case]})
    assert (answer["passed"], answer["failed"][0]["wrong"]) == (0, "expected [1], got [0]")


@settings(max_examples=150)
@given(st.data())
def test_best_effort_gives_what_looking_at_every_division_gives(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 7))
    pairs = {pair: data.draw(st.sampled_from((10, 20, 150, 230))) for pair in combinations(range(count), 2)}
    score = [[0 if a == b else pairs[min(a, b), max(a, b)] for b in range(count)] for a in range(count)]
    available = data.draw(st.permutations(range(count)))[: data.draw(st.integers(1, count))]
    required = data.draw(st.lists(st.sampled_from(range(count)), unique=True, max_size=2))
    size = data.draw(st.integers(1, count))
    expected = every_division(score, available, required, size)
    assert sorted(best_effort(score, available, required, size)) == sorted(expected)


def every_division(score: list[list[int]], available: list[int], required: list[int], size: int) -> tuple[int, ...]:
    """The rule of upstream's comments, literally: padding None fills up one set; the first of the best counts."""
    if len(available) < size or len(required) > size:
        return ()
    padding = -len(available) % size

    def points(gpus: tuple[int | None, ...]) -> int:
        return sum(score[a][b] for a, b in combinations([g for g in gpus if g is not None], 2))

    def divisions(gpus: list[int | None]) -> Iterator[list[tuple[int | None, ...]]]:
        if len(gpus) == size:
            yield [tuple(gpus)]
            return
        for rest in combinations(range(1, len(gpus)), size - 1):
            chosen = (gpus[0], *(gpus[i] for i in rest))
            if chosen.count(None) in (0, padding):
                left = [g for g in gpus if g not in chosen]
                for further in divisions(left):
                    yield [chosen, *further]

    if size == 1:
        found: list[list[tuple[int | None, ...]]] = [[(gpu,)] for gpu in available]
    else:
        found = list(divisions([*available, *[None] * padding]))
    good = [d for d in found if any(set(required) <= set(s) and None not in s for s in d)]
    if not good:
        return ()
    best = max(good, key=lambda d: sum(map(points, d)))
    return tuple(
        g for g in max((s for s in best if set(required) <= set(s) and None not in s), key=points) if g is not None
    )


def test_best_effort_on_sixteen_free_gpus_is_found_in_one_search() -> None:
    """A pair of four links among pairs of two: upstream's own example of a division of many sets."""
    links = {(a, a + 1): 200 for a in range(0, 14, 2)} | {(14, 15): 400}
    score = [[links.get((min(a, b), max(a, b)), 10) for b in range(16)] for a in range(16)]
    assert best_effort(score, range(16), (), 2) == (14, 15)


def test_a_pair_of_two_links_is_passed_over_for_one_of_one_link() -> None:
    """best-effort gives (4, 5), 150 points, where 0 and 4 have 210: what Kerf's own choice improves on."""
    fabric = fabric_of(MACHINES["dgx1-v100-hybrid-cube-mesh"])
    assert choose_best_effort(fabric, choice_of(2, 0, 2, 4, 5)) == (4, 5)
    assert choose_gpus(fabric, choice_of(2, 0, 2, 4, 5)) == (0, 4)


def test_a_single_gpu_is_the_first_free_one() -> None:
    fabric = fabric_of(MACHINES["4xrtx8000-nvbridge"])
    assert choose_best_effort(fabric, choice_of(1, 1, 2)) == (1,)
    assert choose_simple(fabric, choice_of(1, 1, 2)) == (1,)


@pytest.mark.parametrize("choose", [choose_best_effort, choose_simple])
def test_too_few_gpus_are_no_set(choose: object) -> None:
    fabric = fabric_of(MACHINES["4xrtx8000-nvbridge"])
    assert choose(fabric, choice_of(3, 1, 2)) is None  # type: ignore[operator]


def test_above_sixteen_gpus_best_effort_chooses_as_kerf_does() -> None:
    count = 24
    links = tuple(Link(a=a, b=b, nvlinks=(a * 7 + b * 3) % 5, pcie="node") for a, b in combinations(range(count), 2))
    gpus = tuple(Gpu(uuid=f"g{i}", index=i, model="M", memory_mib=1, compute_capability="9.0") for i in range(count))
    fabric = fabric_of(Inventory(node="large", boot_id="b", gpus=gpus, links=links))
    everything = choice_of(4, *range(count))
    assert choose_best_effort(fabric, everything) == choose_gpus(fabric, everything)


def test_static_sets_have_no_size_but_1_2_4_and_8() -> None:
    free = list(range(1, 8))
    assert static_set(VOLTA, free, (), 2) == (1, 2)
    assert static_set(PASCAL, free, (), 4) == (4, 5, 6, 7)
    assert static_set(VOLTA, free, (), 3) == ()
