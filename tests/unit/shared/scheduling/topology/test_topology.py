"""The choice of the GPUs of one node for pods that need several."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.topologies import inventory, machines
from shared.model.gpu import Gpu, Inventory, Link, Nic, PcieLevel
from shared.scheduling.topology import Choice, choose_gpus, fabric_of
from shared.scheduling.topology.base import Near, all_near, largest_group
from shared.scheduling.topology.fabric import Fabric, places_of
from shared.scheduling.topology.rings import canonical, quality, ring_mb_s, worth

MACHINES = machines()
LEVELS: tuple[PcieLevel, ...] = ("internal", "single", "multiple", "hostbridge", "node", "system")


def mask(*places: int) -> int:
    return sum(1 << place for place in places)


def ring_choice(fabric: Fabric, fitting: int, size: int, **more: object) -> tuple[int, ...] | None:
    return choose_gpus(fabric, Choice(size=size, fitting=fitting, idle=fitting, **more))  # type: ignore[arg-type]


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


# --- rings ------------------------------------------------------------------------------------------------------


def ring_by_hand(fabric: Fabric, places: tuple[int, ...]) -> int:
    first, *others = places
    rounds = ((first, *order, first) for order in permutations(others))
    return max(min(fabric.mb_s[a][b] for a, b in pairwise(tour)) for tour in rounds)


@settings(max_examples=100)
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


@settings(max_examples=100)
@given(st.data())
def test_the_choice_is_of_what_is_free_and_no_other_set_is_better(data: st.DataObject) -> None:
    fabric = fabric_of(data.draw(inventories()))
    fitting = data.draw(st.integers(1, (1 << fabric.count) - 1))
    size = data.draw(st.integers(1, fitting.bit_count()))
    near: Near = data.draw(st.sampled_from(("", "peers", "numa")))
    sets = [mask(*places) for places in combinations(places_of(fitting), size)]
    good = [gpus for gpus in sets if not near or all_near(fabric, gpus, near)]
    chosen = ring_choice(fabric, fitting, size, near=near)
    if chosen is None:
        assert not good
        return
    assert mask(*chosen) in good
    best = max((quality(fabric, gpus), worth(fabric, fitting & ~gpus)) for gpus in good)
    assert (quality(fabric, mask(*chosen)), worth(fabric, fitting & ~mask(*chosen))) == best


@settings(max_examples=50)
@given(inventories(), st.randoms())
def test_the_order_in_which_an_agent_names_gpus_and_links_changes_nothing(machine: Inventory, rng: object) -> None:
    gpus, links = list(machine.gpus), list(machine.links)
    rng.shuffle(gpus)  # type: ignore[attr-defined]
    rng.shuffle(links)  # type: ignore[attr-defined]
    shuffled = msgspec.structs.replace(machine, gpus=tuple(gpus), links=tuple(links))
    for size in range(1, len(gpus) + 1):
        everything = (1 << len(gpus)) - 1
        choice = Choice(size=size, fitting=everything, idle=everything)
        assert choose_gpus(fabric_of(machine), choice) == choose_gpus(fabric_of(shuffled), choice)


@settings(max_examples=50)
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


# --- choices ----------------------------------------------------------------------------------------------------


def test_a_pair_of_two_links_is_not_passed_over_for_one_of_one_link() -> None:
    fabric = fabric_of(MACHINES["dgx1-v100-hybrid-cube-mesh"])
    assert ring_choice(fabric, mask(0, 2, 4, 5), 2) == (0, 4)


def test_a_single_gpu_leaves_nvlink_pairs_whole() -> None:
    """Pairs are 0-3 and 1-2. With 3 taken, 0 has lost its partner."""
    fabric = fabric_of(MACHINES["4xrtx8000-nvbridge"])
    assert ring_choice(fabric, mask(1, 2, 0), 1) == (0,)


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
    assert largest_group(fabric, mask(0, 1, 2, 3), "peers") == mask(0, 1, 2, 3)
    assert largest_group(halves, mask(0, 1, 2), "peers") == mask(0, 1)
    assert ring_choice(halves, mask(0, 1, 2, 3), 3, near="peers") is None
    assert ring_choice(halves, mask(0, 2, 3), 2, near="peers") == (2, 3)


def test_peers_are_found_on_a_large_machine_with_stronger_links_between_others() -> None:
    count = 24
    links = tuple(
        Link(a=a, b=b, nvlinks=(a * 7 + b * 3) % 5 if a % 5 != b % 5 else 0, p2p=a % 5 == b % 5)
        for a, b in combinations(range(count), 2)
    )
    gpus = tuple(Gpu(uuid=f"g{i}", index=i, model="M", memory_mib=1, compute_capability="9.0") for i in range(count))
    fabric = fabric_of(Inventory(node="far", boot_id="b", gpus=gpus, links=links))
    everything = (1 << count) - 1
    chosen = ring_choice(fabric, everything, 5, near="peers")
    assert chosen is not None
    assert all_near(fabric, mask(*chosen), "peers")
    assert ring_choice(fabric, everything, 6, near="peers") is None


def test_a_large_machine_of_irregular_wiring_is_still_answered() -> None:
    """24 GPUs of which no two are interchangeable: too many sets for a full search."""
    count = 24
    links = tuple(Link(a=a, b=b, nvlinks=(a * 7 + b * 3) % 5, pcie="node") for a, b in combinations(range(count), 2))
    gpus = tuple(Gpu(uuid=f"g{i}", index=i, model="M", memory_mib=1, compute_capability="9.0") for i in range(count))
    fabric = fabric_of(Inventory(node="large", boot_id="b", gpus=gpus, links=links))
    everything = (1 << count) - 1
    chosen = ring_choice(fabric, everything, 4)
    assert chosen is not None
    assert len(set(chosen)) == 4
    assert ring_mb_s(fabric, mask(*chosen)) >= 3 * 25_000
