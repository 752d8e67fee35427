"""How the default policy handles GPUs in MIG mode: its tables, its loops, its choices."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.policies import BestFit, Fgd
from services.placement.engine.engine import Engine, Place
from services.placement.free_capacity import fits_room
from services.placement.policies import columns
from services.placement.policies.base import Policy
from services.placement.policies.columns import ask_of, asked_milli, columns_of
from services.placement.policies.kerf import balance, groups, mig, score
from services.placement.policies.kerf import tables as tables_module
from services.placement.policies.kerf.mig import (
    MOST,
    NONE,
    Instances,
    after_taking,
    constants_of,
    expected_waste,
    spare_milli,
)
from services.placement.policies.kerf.mix import accepts, kind_of, milli_on
from services.placement.policies.kerf.parameters import BUCKET_MILLI
from services.placement.policies.kerf.policy import Kerf
from services.placement.policies.kerf.score import UNFIT, Tables, rate_rows
from services.placement.policies.kerf.waste import STEPS
from shared.book.book import Book
from shared.book.fork import Fork
from shared.book.mig import MASKS, MigCut, MigRoom, serving_bits
from shared.book.states import PodState, pod_state
from shared.contracts.facts import Put
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import GpuShare, Grant
from shared.model.mig import GEOMETRIES, PROFILES, MigInstance, geometry_of
from shared.model.request import GpuAsk
from tests.support import build

A100, A30 = ("NVIDIA-A100-SXM4-40GB", 40_960), ("NVIDIA-A30", 24_576)
FIXED = tuple(
    MigInstance(profile=p, start=s) for p, s in (("1g.5gb", 0), ("1g.5gb+me", 1), ("2g.10gb", 2), ("3g.20gb", 4))
)
BIG_AND_SMALL = (MigInstance(profile="1g.5gb", start=0), MigInstance(profile="3g.20gb", start=4))
ON_DEMAND: tuple[MigInstance, ...] = ()

Layout = tuple[MigInstance, ...] | None
"""Instances of a fixed layout, () for cut on demand, None for no MIG."""


def gpu(node: str, index: int, layout: Layout, make: tuple[str, int] = A100) -> Gpu:
    return Gpu(
        uuid=f"{node}-{index}", index=index, model=make[0], memory_mib=make[1],
        mig_enabled=layout is not None, mig_on_demand=layout == ON_DEMAND, mig_instances=layout or (),
    )  # fmt: skip


def cluster(*nodes: tuple[Layout, ...], make: tuple[str, int] = A100) -> Engine:
    """One node for each tuple of layouts, n0, n1 and so on."""
    book = Book()
    for number, layouts in enumerate(nodes):
        name = f"n{number}"
        book.apply(Put(object=build.node(name)))
        gpus = tuple(gpu(name, index, layout, make) for index, layout in enumerate(layouts))
        book.put_inventory(Inventory(node=name, boot_id="1", gpus=gpus, strategies=("exclusive", "advisory", "mig")))
        book.set_agent_trouble(name, "")
    return Engine(book, "kerf")


def waiting(name: str, **limits: Any) -> PodState:
    """Limits as `mig_1g_5gb=1` or `gpu_memory="4Gi"`."""
    named = {f"kerf.dev/{key.replace('_', '-', 1).replace('_', '.')}": str(amount) for key, amount in limits.items()}
    return pod_state(build.pod(name, limits={"kerf.dev/slot": "1"} | named))


def decided(engine: Engine, state: PodState) -> Place | None:
    """Decides, learns, and holds the place that was found."""
    engine.book.pods[state.uid] = state
    place = engine.decide(state)
    engine.meet(state, placed=place is not None)
    if place is not None:
        grant = Grant(grant_id=f"g-{state.uid}", term=1, containers=place.containers) if place.containers else None
        engine.book.hold(state.uid, place.node, grant)
    return place


def put(engine: Engine, number: int, **limits: Any) -> list[GpuShare]:
    place = decided(engine, waiting(f"p{number}", **limits))
    assert place is not None
    return [share for container in place.containers.values() for share in container.gpus]


def learn(engine: Engine, *often: tuple[int, dict[str, Any]]) -> None:
    """This many pods of each kind have come, for example to other clusters: nothing is placed."""
    number = 0
    for count, limits in often:
        for _ in range(count):
            number += 1
            engine.meet(waiting(f"seen{number}", **limits), placed=True)
    policy_of(engine).learn()


def policy_of(engine: Engine) -> Kerf:
    policy = engine.policies["kerf"]
    assert isinstance(policy, Kerf)
    return policy


# --- the tables -------------------------------------------------------------------------------------------------

CUTS = [
    *(MigCut(place, f"make{place}", geometry.least_mib, None) for place, geometry in enumerate(GEOMETRIES)),
    *(MigCut(geometry_of(*A100) or 0, *A100, layout) for layout in (FIXED, BIG_AND_SMALL)),
]  # fmt: skip


def instances_of(cut: MigCut) -> Instances:
    known = constants_of(cut)
    return Instances(known.free[None], np.zeros((1, MASKS)), np.zeros((1, MASKS)), known.after[None], known.sizes[None])


@settings(max_examples=60)
@given(
    st.sampled_from(CUTS),
    st.dictionaries(st.integers(0, 2 * MOST - 1), st.floats(0.001, 1.0), max_size=6),
    st.floats(0.001, 0.3),
)
def test_no_rest_wastes_more_than_itself_and_a_full_gpu_wastes_nothing(
    cut: MigCut, often: dict[int, float], give_up: float
) -> None:
    known = constants_of(cut)
    rates = np.zeros(2 * MOST)
    for line, rate in often.items():
        rates[line] = rate
    waste = expected_waste(known.free, known.after, rates, give_up)
    assert np.all(waste >= -1e-9)
    assert np.all(waste <= known.free + 1e-9)
    assert np.all(waste[known.free == 0] == 0)
    useless = [mask for mask in range(MASKS) if all(known.after[line, mask] == NONE for line in often)]
    assert np.allclose(waste[useless], known.free[useless]), "what serves no request is wasted completely"


def test_the_waste_of_a_gpu_by_hand() -> None:
    """Half of the pods want all four slices, half two of them, and a rest is given up at a rate of 0.1."""
    known = constants_of(MigCut(geometry_of(*A30) or 0, *A30, None))
    half_line, whole_line = (known.sizes[:, 0].tolist().index(PROFILES.index(name)) for name in ("2g.12gb", "4g.24gb"))
    rates = np.zeros(2 * MOST)
    rates[[half_line, whole_line]] = 0.5
    waste = expected_waste(known.free, known.after, rates, 0.1)
    half = 0.1 * (0.5 * 500) / (0.1 + 0.5)  # given up it is lost on the other half of the pods; filled, nothing is
    assert waste[0b0011] == pytest.approx(half)
    assert waste[0b1001] == 500, "two slices that are no pair"
    assert waste[0] == pytest.approx(0.5 * half / 1.1)


ASKS = st.one_of(
    st.builds(
        lambda mib, milli: GpuAsk(count=1, memory_mib=mib, compute_milli=milli),
        st.integers(1, 45_000),
        st.integers(0, 1000),
    ),
    st.builds(lambda milli: GpuAsk(count=1, compute_milli=milli, memory_milli=milli), st.integers(1, 1000)),
    st.sampled_from([GpuAsk(count=1, profile=p.name) for cut in CUTS for p in GEOMETRIES[cut.geometry].profiles]),
)


@settings(max_examples=300)
@given(st.sampled_from(CUTS), st.integers(0, MASKS - 1), ASKS)
def test_a_request_takes_the_same_in_the_tables_as_in_the_book(cut: MigCut, taken: int, ask: GpuAsk) -> None:
    room = MigRoom(cut.geometry, cut.instances is None, cut.instances or (), taken)
    used = room.used
    compiled = ask_of(waiting("p"), ask)
    got = after_taking(0, used, cut.total_mib, compiled, 1, instances_of(cut))
    assert (got != NONE) == bool(room.bits & serving_bits(cut.geometry, ask, cut.total_mib))
    instance = room.take(ask, cut.total_mib)
    assert got == (NONE if instance is None else room.used)


def test_the_excess_of_an_instance_over_the_request_is_wasted_unless_it_was_requested_by_name() -> None:
    by_name, by_size = ask_of(waiting("a", mig_3g_20gb=1)), ask_of(waiting("b", gpu_memory="10Gi"))
    assert spare_milli(500, A100[1], by_name) == 0
    assert spare_milli(500, A100[1], by_size) == 250
    assert spare_milli(125, A100[1], by_size) == 0


@given(st.integers(1, 100_000), st.integers(0, 1000), st.integers(1, 200_000))
def test_the_compiled_size_of_a_request_is_that_of_the_mix(memory_mib: int, compute_milli: int, total_mib: int) -> None:
    ask = GpuAsk(count=1, memory_mib=memory_mib, compute_milli=compute_milli)
    assert asked_milli(total_mib, ask_of(waiting("p"), ask)) == milli_on(ask, total_mib)


# --- counts -------------------------------------------------------------------------------------------------


def test_gpus_in_mig_mode_are_a_kind_of_their_own_that_takes_other_pods() -> None:
    arrays = cluster((None, ON_DEMAND)).book.arrays
    took = {
        name: accepts(kind_of(waiting("p", **limits)), arrays).tolist()
        for name, limits in {
            "whole": {"gpu": 1}, "part": {"gpu_memory": "4Gi"}, "two parts": {"gpu": 2, "gpu_memory": "4Gi"},
            "instance": {"mig_1g_5gb": 3}, "instance of others": {"mig_1g_6gb": 1},
        }.items()
    }  # fmt: skip
    assert took == {
        "whole": [True, False],
        "part": [True, True],
        "two parts": [True, False],
        "instance": [False, True],
        "instance of others": [False, False],
    }


def test_a_gpu_in_mig_mode_is_no_whole_gpu_for_pods_of_several() -> None:
    """This GPU's largest instance has all the memory and compute that the inventory lists."""
    small = ("NVIDIA-A100-SXM4-40GB", 40_192)
    tables = []
    for layout in (ON_DEMAND, None):
        engine = cluster((layout,) * 4, (None,) * 4, make=small)
        learn(engine, (60, {"gpu": 4}), (10, {"mig_1g_5gb": 1}))
        tables.append(policy_of(engine)._known())
    assert tables[0].groups[0, 4] > tables[1].groups[0, 4], "one node of whole GPUs is scarcer than two"


def test_instances_are_expensive_if_few_are_left() -> None:
    prices = []
    for taken in (0, 3):
        engine = cluster((None,), *((ON_DEMAND,) for _ in range(4)))
        for number in range(taken):
            put(engine, number, mig_7g_40gb=1)
        learn(engine, (100, {"gpu": 1}), (400, {"mig_3g_20gb": 1}))
        mig_class = engine.book.arrays.node_class[engine.book.nodes["n1"].row]
        prices.append(policy_of(engine)._known().price[mig_class, 2])
    assert prices[0] < prices[1]


# --- the loops --------------------------------------------------------------------------------------------------

WISHES: tuple[dict[str, Any], ...] = (
    {"mig_1g_5gb": 1},
    {"mig_1g_5gb.me": 1},
    {"mig_2g_10gb": 1},
    {"mig_3g_20gb": 2},
    {"mig_7g_40gb": 1},
    {"mig_1g_10gb": 5},
    {"mig_1g_6gb": 1},
    {"gpu_memory": "4Gi"},
    {"gpu_memory": "18Gi", "gpu_compute": 30},
    {"gpu_compute": 14},
    {"gpu": 1},
    {"gpu": 2},
    {},
)
LAYOUTS: tuple[Layout, ...] = (None, ON_DEMAND, ON_DEMAND, FIXED, BIG_AND_SMALL)


def busy_cluster(seed: int) -> Engine:
    """Nodes of several kinds, on which pods have come and gone."""
    rng = random.Random(seed)
    makes = [tuple(rng.choice(LAYOUTS) for _ in range(rng.choice((1, 2, 4, 9)))) for _ in range(5)]
    engine = cluster(*makes)
    held = []
    for number in range(40):
        state = waiting(f"p{number}", **rng.choice(WISHES))
        if decided(engine, state) is not None:
            held.append(state.uid)
        if held and rng.random() < 0.4:
            engine.book.unhold(held.pop(rng.randrange(len(held))))
    return engine


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from(WISHES))
def test_compiled_scores_equal_interpreted_scores_with_bounds_checks(seed: int, wish: dict[str, Any]) -> None:
    engine = busy_cluster(seed)
    policy, arrays, state = policy_of(engine), engine.book.arrays, waiting("asked", **wish)
    rows = np.arange(len(engine.book.row_names))
    room, fit = fits_room(state, arrays, rows)
    fit = np.zeros((len(rows), 1), np.bool_) if fit is None else fit
    arguments = (rows, fit, columns_of(arrays), policy._known(), ask_of(state))
    scores = rate_rows(*arguments)
    assert np.array_equal(scores, interpreted(*arguments))
    if wish:
        found = [engine._fit_node(state, engine.book.nodes[name]) is not None for name in engine.book.row_names]
        assert ((scores != UNFIT) & room).tolist() == found, (
            "a score says whether there are as many instances as are asked for"
        )


def interpreted(*arguments: Any) -> Any:
    """`rate_rows` and all that it calls, without the compiler."""
    modules = (balance, columns, groups, mig, score)
    kept = {
        (module, name): value for module in modules for name, value in vars(module).items() if hasattr(value, "py_func")
    }
    try:
        for (module, name), value in kept.items():
            setattr(module, name, value.py_func)
        return score.rate_rows(*arguments)
    finally:
        for (module, name), value in kept.items():
            setattr(module, name, value)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from(WISHES))
def test_the_terms_of_a_node_add_up_to_its_score(seed: int, wish: dict[str, Any]) -> None:
    engine = busy_cluster(seed)
    state = waiting("asked", **wish)
    place = engine.decide(state)
    if place is None:
        return
    policy, row = policy_of(engine), engine.book.nodes[place.node].row
    _, fit = fits_room(state, engine.book.arrays, np.array([row]))
    score = policy.score(state, engine.book.arrays, np.array([row]), fit)
    assert abs(sum(policy.words(state, row).values()) / BUCKET_MILLI - score[0]) <= 1.1, "up to rounding to a bucket"


@pytest.mark.parametrize("name", ["kerf", Fgd.name, BestFit.name, "binpack", "spread", "least-loaded-nearest"])
def test_every_policy_fills_gpus_in_mig_mode_and_refuses_only_what_does_not_fit(name: str) -> None:
    rng = random.Random(4)
    engine = Engine(cluster((ON_DEMAND,) * 4, (FIXED, None), (None, ON_DEMAND, BIG_AND_SMALL)).book, name)
    for number in range(80):
        state = waiting(f"p{number}", **rng.choice(WISHES))
        fits = any(engine.row(state).refresh() > UNFIT)
        possible = fits and any(engine._fit_node(state, node) is not None for node in engine.book.nodes.values())
        assert (decided(engine, state) is not None) == possible
    assert engine.book.overbooked() == []


def test_new_layouts_are_learned_before_they_are_looked_up() -> None:
    """The loops do not check bounds: no score may be requested from tables that do not know a GPU yet."""
    engine = cluster((None, None))
    put(engine, 0, gpu_memory="4Gi")
    known = policy_of(engine)._known()
    assert known.instances is None
    for number, layout in enumerate((ON_DEMAND, FIXED, BIG_AND_SMALL)):
        inventory = Inventory(
            node="n0",
            boot_id="1",
            generation=number + 1,
            gpus=(gpu("n0", 0, None), gpu("n0", 1, layout)),
            strategies=("exclusive", "advisory", "mig"),
        )
        engine.book.put_inventory(inventory)
        assert put(engine, number + 1, mig_1g_5gb=1)[0].mig is not None
        engine.book.unhold(waiting(f"p{number + 1}").uid)
        assert len(policy_of(engine)._known().instances.free) == number + 1


def test_a_fork_with_other_layouts_has_tables_of_its_own() -> None:
    engine = cluster((None, None))
    put(engine, 0, gpu_memory="4Gi")
    fork = Fork(engine.book)
    twin: Policy = policy_of(engine).on(fork)
    fork.put_inventory(
        msgspec.structs.replace(
            engine.book.nodes["n0"].inventory,
            generation=2,
            gpus=(gpu("n0", 0, None), gpu("n0", 1, FIXED)),
            strategies=("advisory", "mig"),
        )
    )
    state = waiting("p", mig_1g_5gb=1)
    rows = np.array([fork.nodes["n0"].row])
    assert twin.score(state, fork.arrays, rows, fits_room(state, fork.arrays, rows)[1])[0] > UNFIT
    tables: Tables = policy_of(engine)._known()
    assert tables.instances is None
    assert not engine.book.arrays.any_mig


# --- the choices ------------------------------------------------------------------------------------------------

OFTEN: tuple[tuple[int, dict[str, Any]], ...] = (
    (40, {"mig_1g_5gb": 1}),
    (30, {"mig_3g_20gb": 1}),
    (15, {"mig_4g_20gb": 1}),
    (15, {"mig_7g_40gb": 1}),
)


def test_a_begun_gpu_is_filled_before_one_is_broken_that_could_serve_large_instances() -> None:
    engine = cluster((ON_DEMAND, ON_DEMAND), (ON_DEMAND, ON_DEMAND))
    learn(engine, *OFTEN)
    shares = [put(engine, number, mig_1g_5gb=1)[0] for number in range(7)]
    assert len({share.uuid for share in shares}) == 1
    assert put(engine, 7, mig_7g_40gb=1)[0].uuid != shares[0].uuid


def test_a_small_instance_goes_where_the_hole_fits_nothing_larger() -> None:
    engine = cluster((ON_DEMAND,), (ON_DEMAND,), (ON_DEMAND,))
    learn(engine, *OFTEN)
    begun = {
        "a half": [put(engine, 1, mig_4g_20gb=1)[0]],
        "a hole": [put(engine, 2, mig_4g_20gb=1)[0], put(engine, 3, mig_2g_10gb=1)[0]],
    }
    held = {share.uuid for shares in begun.values() for share in shares}
    assert put(engine, 4, mig_1g_5gb=1)[0].uuid in held
    assert put(engine, 5, mig_3g_20gb=1)[0].uuid in held
    assert put(engine, 6, mig_7g_40gb=1)[0].uuid not in held


def test_a_part_takes_the_small_instance_of_a_fixed_layout_and_not_an_equally_free_large_one() -> None:
    large, small = (MigInstance(profile="3g.20gb", start=4),), (MigInstance(profile="1g.5gb", start=0),)
    for nodes in (((large, small),), ((large,), (small,)), ((small, large),)):
        engine = cluster(*nodes)
        assert put(engine, 0, gpu_memory="4Gi")[0].mig == small[0]


def test_a_part_goes_to_whichever_of_instance_and_soft_share_costs_later_pods_less() -> None:
    part = {"gpu_memory": "4864Mi"}
    instances_wanted = ((300, part), (600, {"mig_7g_40gb": 1}), (20, {"gpu": 1}))
    whole_gpus_wanted = ((300, part), (20, {"mig_7g_40gb": 1}), (600, {"gpu": 1}))
    for seen, in_mig in ((instances_wanted, False), (whole_gpus_wanted, True)):
        for layouts in ((None, ON_DEMAND), (ON_DEMAND, None)):
            engine = cluster(layouts)
            learn(engine, *seen)
            assert (put(engine, 0, **part)[0].mig is not None) == in_mig


def test_a_part_that_would_waste_most_of_an_instance_gets_a_soft_share() -> None:
    """11 GiB need half of this GPU as an instance, and little more than a quarter as a share."""
    for layouts in ((None, ON_DEMAND), (ON_DEMAND, None)):
        engine = cluster(layouts)
        learn(engine, (50, {"gpu_memory": "11Gi"}), (20, {"mig_1g_5gb": 1}))
        assert put(engine, 0, gpu_memory="11Gi")[0].mig is None


A100_80 = ("NVIDIA-A100-SXM4-80GB", 81_920)
ONES_AND_THREE = tuple(MigInstance(profile=p, start=s) for p, s in (("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4)))
TWO_THREES = tuple(MigInstance(profile="3g.40gb", start=start) for start in (0, 4))


@pytest.mark.parametrize("nodes", [
    ((ONES_AND_THREE, *(None,) * 4),),
    ((*(None,) * 4, ONES_AND_THREE),),
    ((ONES_AND_THREE,), (None,) * 4),
    ((ONES_AND_THREE,), (None,), (None,), (None,), (None,)),
])  # fmt: skip
def test_small_parts_do_not_fill_a_large_instance_while_whole_gpus_are_idle(
    nodes: tuple[tuple[Layout, ...], ...],
) -> None:
    engine = cluster(*nodes, make=A100_80)
    profiles = [
        share.mig.profile for number in range(12) for share in put(engine, number, gpu_memory="3Gi") if share.mig
    ]
    assert set(profiles) <= {"1g.10gb"}


@pytest.mark.parametrize(
    "nodes", [((TWO_THREES, None),), ((None, TWO_THREES),), ((TWO_THREES,), (None,)), ((None,), (TWO_THREES,))]
)
@pytest.mark.parametrize("seen", [(), ((20, {"gpu": 1}),), ((1000, {"gpu_memory": "3Gi"}),)])
def test_a_small_part_shares_an_idle_gpu_before_it_takes_most_of_one_as_an_instance(
    nodes: tuple[tuple[Layout, ...], ...], seen: tuple[tuple[int, dict[str, Any]], ...]
) -> None:
    """However often such parts are requested: that they would waste most of an instance does not make it cheaper."""
    engine = cluster(*nodes, make=A100_80)
    learn(engine, *seen)
    assert put(engine, 0, gpu_memory="3Gi")[0].mig is None


@pytest.mark.parametrize("seen", [(), ((1000, {"gpu_memory": "3Gi"}),)])
def test_a_small_part_takes_the_smallest_free_instance_of_all_gpus(
    seen: tuple[tuple[int, dict[str, Any]], ...],
) -> None:
    one = (MigInstance(profile="1g.10gb", start=0),)
    for nodes in (((TWO_THREES, one),), ((TWO_THREES,), (one,)), ((one,), (TWO_THREES,))):
        engine = cluster(*nodes, make=A100_80)
        learn(engine, *seen)
        assert [(share.mig or one[0]).profile for share in put(engine, 0, gpu_memory="3Gi")] == ["1g.10gb"]


def test_a_part_takes_an_oversized_instance_where_the_gpus_are_all_needed_whole() -> None:
    """The comparison is one of costs: where hundreds of pods want whole GPUs, a share would waste the rest of one."""
    engine = cluster((TWO_THREES, None), make=A100_80)
    learn(engine, (500, {"gpu": 1}))
    assert put(engine, 0, gpu_memory="3Gi")[0].mig is not None


def test_parts_are_expected_only_in_clusters_with_gpus_in_mig_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def tables(*layouts: Layout) -> Tables:
        engine = cluster(layouts)
        learn(engine, (7, {"gpu_memory": "3Gi"}), (5, {"gpu": 1}))
        return policy_of(engine)._known()

    before, beside = tables(None, None), tables(None, ON_DEMAND)
    monkeypatch.setattr(tables_module, "PRIOR_PARTS", 1000)
    monkeypatch.setattr(mig, "PRIOR_PARTS", 1000)
    after = tables(None, None)
    assert all(np.array_equal(getattr(before, name), getattr(after, name)) for name in ("waste", "price", "groups"))
    assert not np.array_equal(beside.waste, tables(None, ON_DEMAND).waste)
    assert before.waste[0, STEPS // 2] > beside.waste[0, STEPS // 2], "half a GPU is of use where parts are expected"


def test_several_instances_of_one_pod_fill_what_is_begun_first() -> None:
    engine = cluster((ON_DEMAND, ON_DEMAND, ON_DEMAND))
    learn(engine, *OFTEN)
    begun = put(engine, 0, mig_4g_20gb=1)[0].uuid
    shares = put(engine, 1, mig_1g_5gb=5)
    assert [share.uuid for share in shares].count(begun) == 3
    assert len({share.uuid for share in shares}) == 2


def test_an_answer_does_not_depend_on_earlier_queries() -> None:
    engine = busy_cluster(7)
    first = [engine.decide(waiting("p", **wish)) for wish in WISHES]
    again = [engine.decide(waiting("p", **wish)) for wish in reversed(WISHES)]
    assert first == list(reversed(again))
