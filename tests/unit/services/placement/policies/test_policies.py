"""The scores of the policies' parts, and that their compiled loops give the same."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.policies import BestFit, Fgd
from services.placement.engine.engine import Engine
from services.placement.free_capacity import fits_room
from services.placement.policies import register
from services.placement.policies.columns import ask_of, columns_of
from services.placement.policies.kerf.balance import imbalance
from services.placement.policies.kerf.groups import group_value, scarcity
from services.placement.policies.kerf.mix import MOST_COUNTED, MOST_KINDS, Mix
from services.placement.policies.kerf.parameters import BUCKET_MILLI, FILL, FLOW, blend
from services.placement.policies.kerf.policy import Kerf
from services.placement.policies.kerf.prices import START, settle
from services.placement.policies.kerf.score import rate_rows
from services.placement.policies.kerf.turnover import Turnover
from services.placement.policies.kerf.waste import STEPS, expected_waste
from shared.book.book import Book
from shared.book.states import PodState, pod_state
from shared.contracts.facts import Put
from shared.model.grant import Grant
from tests.support import build
from tests.support.harness.placement import Placement

# --- the parts --------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(1, STEPS), st.floats(0.01, 1.0), max_size=6), st.floats(0.001, 0.1))
def test_no_rest_wastes_more_than_itself_and_a_rest_below_every_size_wastes_all(
    sizes: dict[int, float], give_up: float
) -> None:
    rates = np.zeros(STEPS + 1)
    for step, rate in sizes.items():
        rates[step] = rate
    waste = expected_waste(rates, give_up)
    rests = np.arange(STEPS + 1) * 10
    assert waste[0] == 0
    assert np.all(waste >= 0)
    assert np.all(waste <= rests + 1e-9)
    smallest = min(sizes, default=STEPS + 1)
    assert np.allclose(waste[:smallest], rests[:smallest])


def test_what_pods_of_one_size_fill_evenly_is_hardly_wasted_and_the_odd_rest_is() -> None:
    rates = np.zeros(STEPS + 1)
    rates[50] = 1.0
    waste = expected_waste(rates, 1 / 100)
    assert waste[100] < 20
    assert waste[70] == pytest.approx(200, rel=0.1)
    assert waste[30] == 300


def test_a_node_is_balanced_if_cpu_and_memory_last_as_long_as_gpus() -> None:
    assert imbalance(4000.0, 8, 0.5, 0.5) == 0
    assert imbalance(4000.0, 8, 0.25, 0.5) == pytest.approx(4000 * 0.25)
    assert imbalance(4000.0, 8, 0.0, 0.0) == pytest.approx(8000)
    assert imbalance(5.0, 8, 0.0, 0.0) == 0


def test_a_complete_group_is_worth_its_gpus_and_an_incomplete_one_more_as_it_grows() -> None:
    weights = np.zeros(9)
    weights[4] = 1.0
    assert [group_value(free, 8, weights) for free in (3, 4, 7, 8)] == [0, 4000, 4000, 8000]
    assert group_value(4, 2, weights) == 0, "a node of two GPUs never has a group of four"
    weights[0] = 0.5
    steps = np.diff([group_value(free, 8, weights) for free in range(4)])
    assert steps[0] < steps[1] < steps[2]


def test_groups_are_scarce_when_demand_for_them_exceeds_supply() -> None:
    share = np.zeros(9)
    share[8] = 0.3
    assert scarcity(share, np.array([8, 8, 8, 8]), 32_000.0, 0)[8] == pytest.approx(0.09)
    assert scarcity(share, np.array([7, 7, 7, 8]), 29_000.0, 0)[8] == 1
    assert scarcity(share, np.array([7, 7]), 14_000.0, 0)[8] == 1
    assert not scarcity(np.zeros(9), np.array([8]), 8_000.0, 0).any()


def test_resources_with_excess_demand_become_expensive_and_the_others_cheap() -> None:
    supply = np.array([[10.0, 10.0, 10.0], [10.0, 10.0, 10.0], [5.0, 5.0, 0.0]])
    need = np.array([[0.1, 0.1, 1.0], [0.1, 0.1, 1.0]])
    only_first = np.array([[True, False, False], [True, True, False]])
    prices = settle(np.full((3, 3), START), supply, need, np.array([9.0, 9.0]), only_first, np.array([True, True]), 0.1)
    assert prices[0, 2] > prices[1, 2], "the class that picky pods need is dearer"
    assert prices[0, 0] < START, "CPU is asked for less than there is"
    again = settle(np.full((3, 3), START), supply, need, np.array([9.0, 9.0]), only_first, np.array([True, True]), 0.1)
    assert np.array_equal(prices, again)


def test_old_observations_fade_and_rare_kinds_are_dropped_first() -> None:
    mix = Mix()
    often = pod_state(build.gpu_pod("often", gpus=1))
    for number in range(MOST_KINDS):
        mix.add(often)
        mix.add(pod_state(build.pod(f"rare-{number}", requests={"cpu": f"{number + 1}m"})))
    assert len(mix.counts) <= MOST_KINDS
    assert max(mix.counts.values()) == MOST_KINDS
    for _ in range(MOST_COUNTED):
        mix.add(often)
    assert mix.total < MOST_COUNTED
    assert mix.total == pytest.approx(sum(mix.counts.values()))


def test_turnover_is_zero_while_pods_only_arrive_and_one_when_as_many_leave() -> None:
    turnover, held = Turnover(), 0
    for _ in range(10):
        for _ in range(500):
            turnover.placed()
        held += 500
        assert turnover.look(held) == 0
    for _ in range(40):
        for _ in range(500):
            turnover.placed()
        turnover.look(held)
    assert turnover.value > 0.99


def test_parameters_blend_from_filling_to_flowing() -> None:
    assert blend(0.0) == FILL
    assert blend(1.0) == FLOW
    assert blend(0.5).patience == (FILL.patience + FLOW.patience) / 2


# --- the loops --------------------------------------------------------------------------------------------------

SHAPES = (
    {"gpus": 1},
    {"gpus": 2},
    {"gpus": 4},
    {"memory": "10Gi"},
    {"memory": "30Gi", "compute": 20},
    {"compute": 50},
    {"compute": 30, "annotations": {"kerf.dev/gpu-model": "A100"}},
    {},
)


def some_cluster(seed: int, nodes: int = 6, pods: int = 30, shuffle: int = 0) -> tuple[Engine, Book]:
    """Nodes of several kinds with pods on them, placed by the policy itself; `shuffle` changes the nodes' order."""
    rng = random.Random(seed)
    makes = [
        (rng.choice((1, 2, 4, 8)), rng.choice(("A100", "T4")), rng.choice(("8", "32", "96"))) for _ in range(nodes)
    ]
    order = list(range(nodes))
    random.Random(shuffle).shuffle(order) if shuffle else None
    book = Book()
    for number in order:
        gpus, model, cpu = makes[number]
        book.apply(Put(object=build.node(f"n{number}", cpu=cpu)))
        book.put_inventory(build.inventory(f"n{number}", gpus=gpus, model=model))
        book.set_agent_trouble(f"n{number}", "")
    engine = Engine(book, "kerf")
    for number in range(pods):
        state = some_pod(f"p{number}", rng.choice(SHAPES))
        _hold(engine, state, number)
    return engine, book


def some_pod(name: str, shape: dict) -> PodState:
    pod = build.gpu_pod(name, requests={"cpu": "1"}, **shape) if shape else build.pod(name, requests={"cpu": "2"})
    return pod_state(pod)


def _hold(engine: Engine, state: PodState, number: int) -> None:
    engine.book.pods[state.uid] = state
    place = engine.decide(state)
    engine.meet(state, placed=place is not None)
    if place is not None:
        engine.book.hold(
            state.uid,
            place.node,
            Grant(grant_id=f"g{number}", term=1, containers=place.containers) if place.containers else None,
        )


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from(SHAPES))
def test_compiled_scores_equal_interpreted_scores_with_bounds_checks(seed: int, shape: dict) -> None:
    engine, book = some_cluster(seed)
    policy = engine.policies["kerf"]
    assert isinstance(policy, Kerf)
    state = some_pod("asked", shape)
    rows = np.arange(len(book.row_names))
    _, fit = fits_room(state, book.arrays, rows)
    fit = np.zeros((len(rows), 1), np.bool_) if fit is None else fit
    arguments = (rows, fit, columns_of(book.arrays), policy._known(), ask_of(state))
    assert np.array_equal(rate_rows(*arguments), rate_rows.py_func(*arguments))


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from(SHAPES))
def test_the_loop_for_the_common_case_equals_the_general_one(seed: int, shape: dict) -> None:
    _, book = some_cluster(seed)
    state = some_pod("asked", shape)
    rows = np.arange(len(book.row_names))
    room, fit = fits_room(state, book.arrays, rows)
    book.arrays.any_mig = True  # from here on the general way is taken
    general_room, general_fit = fits_room(state, book.arrays, rows)
    assert np.array_equal(room, general_room)
    assert (fit is None) == (general_fit is None)
    assert fit is None or np.array_equal(fit, general_fit)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 100), st.sampled_from(SHAPES))
def test_a_nodes_score_does_not_depend_on_its_row(seed: int, shuffle: int, shape: dict) -> None:
    """Without pods nothing depends on an earlier choice between equals; then the order of nodes may decide only between
    nodes of one score."""
    scores = []
    for order in (0, shuffle):
        engine, book = some_cluster(seed, pods=0, shuffle=order)
        state = some_pod("asked", shape)
        place = engine.decide(state)
        total = engine.row(state).refresh()
        scores.append({name: int(total[node.row]) for name, node in book.nodes.items()})
        best = max(scores[-1].values())
        assert place is None or scores[-1][place.node] == best
    assert scores[0] == scores[1]


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from(SHAPES))
def test_the_terms_of_a_node_add_up_to_its_score(seed: int, shape: dict) -> None:
    engine, book = some_cluster(seed)
    state = some_pod("asked", shape)
    place = engine.decide(state)
    if place is None:
        return
    row = book.nodes[place.node].row
    policy = engine.policies["kerf"]
    _, fit = fits_room(state, book.arrays, np.array([row]))
    score = policy.score(state, book.arrays, np.array([row]), fit)
    assert score is not None
    cost = -sum(policy.words(state, row).values())
    assert abs(-cost / BUCKET_MILLI - score[0]) <= 1.1, "up to rounding to a bucket"


@pytest.mark.parametrize("name", ["kerf", Fgd.name, BestFit.name, "binpack", "spread", "least-loaded-nearest"])
def test_every_policy_fills_a_cluster_without_overbooking_and_refuses_only_what_does_not_fit(name: str) -> None:
    rng = random.Random(3)
    engine, book = some_cluster(5, pods=0)
    engine = Engine(book, name)
    for number in range(150):
        state = some_pod(f"p{number}", rng.choice(SHAPES))
        room, _ = fits_room(state, book.arrays, np.arange(len(book.row_names)))
        passes = engine.row(state)
        passes.refresh()
        held = len(book.grants) + sum(len(node.pods) for node in book.nodes.values())
        _hold(engine, state, number)
        after = len(book.grants) + sum(len(node.pods) for node in book.nodes.values())
        assert (after > held) == bool((room & passes.passes[: len(room)]).any())
    assert book.overbooked() == []


def test_a_new_leader_learns_the_mix_from_the_placed_pods() -> None:
    pods = [build.gpu_pod(f"p{number}", compute=30) for number in range(5)]
    first = Placement().nodes("n", gpus=4)
    bound = []
    for pod in pods:
        first.facts(pod)
        bound.append(first.bind(pod))
    second = Placement(build.node("n"), *bound, term=200)
    policy = second.core.engine.policies["kerf"]
    assert isinstance(policy, Kerf)
    assert policy.mix.total == 5


def test_a_registered_policy_may_be_registered_again_and_no_other_may_take_its_name() -> None:
    class Impostor(Kerf):
        pass

    register(Fgd)
    with pytest.raises(ValueError, match="there is a policy 'kerf' already: Kerf"):
        register(Impostor)
