"""The choice of the GPUs of one node for pods that need several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations, pairwise, permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.topologies import inventory, machines
from bench.topology import CASES, conformance
from shared.model.gpu import Gpu, Inventory, Link, Nic, PcieLevel
from shared.scheduling.topology import MODES, Choice, fabric_of
from shared.scheduling.topology.base import all_peers, largest_peer_group
from shared.scheduling.topology.best_effort import best_effort
from shared.scheduling.topology.fabric import Fabric, places_of
from shared.scheduling.topology.rings import canonical, quality, ring_mb_s, worth

MACHINES = machines()
LEVELS: tuple[PcieLevel, ...] = ("internal", "single", "multiple", "hostbridge", "node", "system")


def mask(*places: int) -> int:
    return sum(1 << place for place in places)


def ring_choice(fabric: Fabric, fitting: int, size: int, **more: object) -> tuple[int, ...] | None:
    return MODES["ring"].choose(fabric, Choice(size=size, fitting=fitting, idle=fitting, **more))  # type: ignore[arg-type]


@st.composite
def inventories(draw: st.DrawFn, most: int = 7) -> Inventory:
    """Small machines of any wiring."""
    count = draw(st.integers(2, most))
    gpus = tuple(
        Gpu(
            uuid=f"g{i}",
            index=i,
            model="M",
            memory_mib=1000,
            compute_capability="9.0",
            numa_node=draw(st.integers(0, 1)),
        )
        for i in range(count)
    )
    links = tuple(
        Link(
            a=a,
            b=b,
            nvlinks=draw(st.sampled_from((0, 0, 1, 2))),
            pcie=draw(st.sampled_from(LEVELS)),
            p2p=draw(st.booleans()),
        )
        for a, b in combinations(range(count), 2)
    )
    nics = tuple(
        Nic(name=f"nic{i}", pcie={gpu: draw(st.sampled_from(("multiple", "node"))) for gpu in range(count)})
        for i in range(draw(st.integers(0, 3)))
    )
    return Inventory(node="n", boot_id="b", gpus=gpus, links=links, nics=nics)


# --- go-gpuallocator --------------------------------------------------------------------------------------------


def test_the_modes_of_go_gpuallocator_keep_all_its_cases() -> None:
    assert conformance(json.loads(CASES.read_text()))["failed"] == []


def test_a_case_that_fails_is_reported() -> None:
    case = {"kind": "single", "policy": "simple", "available": [0, 1], "size": 1, "expected": [1]}
    answer = conformance({"topologies": {}, "cases": [case]})
    assert (answer["passed"], answer["failed"][0]["wrong"]) == (0, "expected [1], got [0]")


@settings(max_examples=150, deadline=None)
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


# --- rings ------------------------------------------------------------------------------------------------------


def ring_by_hand(fabric: Fabric, places: tuple[int, ...]) -> int:
    first, *others = places
    rounds = ((first, *order, first) for order in permutations(others))
    return max(min(fabric.mb_s[a][b] for a, b in pairwise(tour)) for tour in rounds)


@settings(max_examples=100, deadline=None)
@given(inventories())
def test_the_strength_of_a_ring_is_that_of_the_best_tour(machine: Inventory) -> None:
    fabric = fabric_of(machine)
    for size in range(2, fabric.count + 1):
        for places in combinations(range(fabric.count), size):
            assert ring_mb_s(fabric, mask(*places)) == ring_by_hand(fabric, places)


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_on_every_known_machine_the_chosen_ring_is_the_best_there_is(name: str) -> None:
    fabric = fabric_of(MACHINES[name])
    some = range(min(fabric.count, 8))
    for size in (2, 4):
        chosen = ring_choice(fabric, mask(*some), size)
        assert chosen is not None
        assert ring_mb_s(fabric, mask(*chosen)) == max(
            ring_by_hand(fabric, places) for places in combinations(some, size)
        )


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_choice_is_of_what_is_free_and_no_other_set_is_better(data: st.DataObject) -> None:
    fabric = fabric_of(data.draw(inventories()))
    fitting = data.draw(st.integers(1, (1 << fabric.count) - 1))
    size = data.draw(st.integers(1, fitting.bit_count()))
    peers = data.draw(st.booleans())
    sets = [mask(*places) for places in combinations(places_of(fitting), size)]
    good = [gpus for gpus in sets if not peers or all_peers(fabric, gpus)]
    chosen = ring_choice(fabric, fitting, size, peers=peers)
    if chosen is None:
        assert not good
        return
    assert mask(*chosen) in good
    best = max((quality(fabric, gpus), worth(fabric, fitting & ~gpus)) for gpus in good)
    assert (quality(fabric, mask(*chosen)), worth(fabric, fitting & ~mask(*chosen))) == best


@settings(max_examples=50, deadline=None)
@given(inventories(), st.randoms())
def test_the_order_in_which_an_agent_names_gpus_and_links_changes_nothing(machine: Inventory, rng: object) -> None:
    gpus, links = list(machine.gpus), list(machine.links)
    rng.shuffle(gpus)  # type: ignore[attr-defined]
    rng.shuffle(links)  # type: ignore[attr-defined]
    shuffled = msgspec.structs.replace(machine, gpus=tuple(gpus), links=tuple(links))
    for mode in ("ring", "best-effort", "simple"):
        for size in range(1, len(gpus) + 1):
            everything = (1 << len(gpus)) - 1
            choice = Choice(size=size, fitting=everything, idle=everything)
            assert MODES[mode].choose(fabric_of(machine), choice) == MODES[mode].choose(fabric_of(shuffled), choice)


@settings(max_examples=50, deadline=None)
@given(inventories(), st.data())
def test_twins_can_be_swapped_without_changing_what_a_set_is_worth(machine: Inventory, data: st.DataObject) -> None:
    fabric = fabric_of(machine)
    gpus = data.draw(st.integers(0, (1 << fabric.count) - 1))
    assert (quality(fabric, gpus), worth(fabric, gpus)) == (
        quality(fabric, canonical(fabric, gpus)),
        worth(fabric, canonical(fabric, gpus)),
    )


def test_machines_of_one_kind_share_what_was_worked_out() -> None:
    machine = MACHINES["dgx1-v100-hybrid-cube-mesh"]
    assert fabric_of(msgspec.structs.replace(machine, node="another", generation=7)) is fabric_of(machine)


# --- improvements on best-effort --------------------------------------------------------------------------------


def test_a_pair_of_two_links_is_not_passed_over_for_one_of_one_link() -> None:
    """go-gpuallocator gives (4, 5), 150 points, where 0 and 4 have 210."""
    fabric = fabric_of(MACHINES["dgx1-v100-hybrid-cube-mesh"])
    assert MODES["best-effort"].choose(fabric, Choice(size=2, fitting=mask(0, 2, 4, 5), idle=mask(0, 2, 4, 5))) == (
        4,
        5,
    )
    assert ring_choice(fabric, mask(0, 2, 4, 5), 2) == (0, 4)


def test_a_single_gpu_leaves_nvlink_pairs_whole() -> None:
    """Pairs are 0-3 and 1-2. With 3 taken, 0 has lost its partner."""
    fabric = fabric_of(MACHINES["4xrtx8000-nvbridge"])
    assert ring_choice(fabric, mask(1, 2, 0), 1) == (0,)
    assert MODES["best-effort"].choose(fabric, Choice(size=1, fitting=mask(1, 2), idle=mask(1, 2))) == (1,)


def test_among_equal_rings_the_one_on_one_numa_node_is_taken_and_the_smaller_gap_filled() -> None:
    """Behind NVSwitch all pairs are equal. Free: two on the first socket, four on the second."""
    fabric = fabric_of(MACHINES["hgx-h200-8gpu"])
    assert ring_choice(fabric, mask(2, 3, 4, 5, 6, 7), 2) == (2, 3)
    assert ring_choice(fabric, mask(2, 3, 4, 5, 6, 7), 4) == (4, 5, 6, 7)


def test_a_slice_of_several_gpus_goes_where_the_policy_wants_it_among_equal_rings() -> None:
    fabric = fabric_of(MACHINES["aws-p5-48xlarge"])
    assert ring_choice(fabric, mask(0, 1, 2, 3), 2, rank=(1, 0, 1, 0, 1, 1, 1, 1)) == (1, 3)


def test_without_peer_access_there_is_no_set_of_peers() -> None:
    pairs = tuple(Link(a=a, b=b, p2p=(a < 2) == (b < 2)) for a, b in combinations(range(4), 2))
    fabric = fabric_of(inventory({"name": "x", "gpu_model": "L4", "matrix": [["SYS"] * 4] * 4}))
    machine = Inventory(
        node="n",
        boot_id="b",
        gpus=tuple(Gpu(uuid=f"g{i}", index=i, model="L4", memory_mib=1) for i in range(4)),
        links=pairs,
    )
    halves = fabric_of(machine)
    assert largest_peer_group(fabric, mask(0, 1, 2, 3)) == mask(0, 1, 2, 3)
    assert largest_peer_group(halves, mask(0, 1, 2)) == mask(0, 1)
    assert ring_choice(halves, mask(0, 1, 2, 3), 3, peers=True) is None
    assert ring_choice(halves, mask(0, 2, 3), 2, peers=True) == (2, 3)


def test_static_sets_are_by_nvmls_index_even_where_a_gpu_is_missing() -> None:
    machine = MACHINES["dgx1-v100-hybrid-cube-mesh"]
    without_0 = fabric_of(msgspec.structs.replace(machine, gpus=machine.gpus[1:]))
    everything = (1 << 7) - 1
    assert MODES["static-dgx1-volta"].choose(without_0, Choice(size=2, fitting=everything, idle=everything)) == (
        0,
        1,
    )  # indices 1 and 2
    assert MODES["static-dgx1-pascal"].choose(without_0, Choice(size=4, fitting=everything, idle=everything)) == (
        3,
        4,
        5,
        6,
    )
    assert MODES["static-dgx1-volta"].choose(without_0, Choice(size=3, fitting=everything, idle=everything)) is None


def test_peers_are_found_on_a_large_machine_with_stronger_links_between_others() -> None:
    count = 24
    links = tuple(
        Link(a=a, b=b, nvlinks=(a * 7 + b * 3) % 5 if a % 5 != b % 5 else 0, p2p=a % 5 == b % 5)
        for a, b in combinations(range(count), 2)
    )
    gpus = tuple(Gpu(uuid=f"g{i}", index=i, model="M", memory_mib=1, compute_capability="9.0") for i in range(count))
    fabric = fabric_of(Inventory(node="far", boot_id="b", gpus=gpus, links=links))
    everything = (1 << count) - 1
    chosen = ring_choice(fabric, everything, 5, peers=True)
    assert chosen is not None
    assert all_peers(fabric, mask(*chosen))
    assert ring_choice(fabric, everything, 6, peers=True) is None


def test_a_large_machine_of_irregular_wiring_is_still_answered() -> None:
    """24 GPUs of which no two are interchangeable: too many sets for a full search."""
    count = 24
    links = tuple(Link(a=a, b=b, nvlinks=(a * 7 + b * 3) % 5, pcie="node") for a, b in combinations(range(count), 2))
    gpus = tuple(Gpu(uuid=f"g{i}", index=i, model="M", memory_mib=1, compute_capability="9.0") for i in range(count))
    fabric = fabric_of(Inventory(node="large", boot_id="b", gpus=gpus, links=links))
    everything = (1 << count) - 1
    for mode in ("ring", "best-effort"):
        chosen = MODES[mode].choose(fabric, Choice(size=4, fitting=everything, idle=everything))
        assert chosen is not None
        assert len(set(chosen)) == 4
    assert ring_mb_s(fabric, mask(*(ring_choice(fabric, everything, 4) or ()))) >= 3 * 25_000
