"""Lower bounds of options: never above the cost, and tight enough that few nodes are tried."""

from __future__ import annotations

import random

import pytest

from services.preemptor.planning import attempt
from services.preemptor.planning.areas import Areas
from services.preemptor.planning.bounds import Bounds
from services.preemptor.planning.planner import Option, Planner
from shared.book.states import PodState
from tests.support.harness.preemptor import Preemptor

NODES = ("a", "b", "c", "d")


def filled(rng: random.Random) -> Preemptor:
    """Fills nodes with whole GPUs, slices and gangs over nodes, with free GPUs in between."""
    preemptor = Preemptor(*NODES, gpus=4)
    for node in NODES:
        gpu = 0
        while gpu < 4:
            name, ran_s, priority = f"{node}{gpu}", rng.choice((5, 5, 60, 900)), rng.choice((0, 0, 1, 5, 200))
            gang = {"kerf.dev/gang": f"g{gpu}", "kerf.dev/gang-size": "2"} if rng.random() < 0.3 else {}
            match rng.choice(("one", "two", "slices", "soft", "free")):
                case "one":
                    preemptor.run(name, node, gpu, ran_s=ran_s, priority=priority, annotations=gang)
                case "two" if gpu < 3:
                    preemptor.run(name, node, gpu, gpu + 1, ran_s=ran_s, priority=priority, annotations=gang)
                    gpu += 1
                case "slices":
                    for part in range(rng.randint(1, 3)):
                        preemptor.run(
                            f"{name}-{part}", node, gpu, memory_mib=20_480, ran_s=ran_s + part, priority=priority
                        )
                case "soft":
                    preemptor.run(
                        name,
                        node,
                        gpu,
                        memory_mib=40_960,
                        compute_milli=1_000,
                        strategy="interposer",
                        ran_s=ran_s,
                        priority=priority,
                    )
            gpu += 1
    return preemptor


def way_on(preemptor: Preemptor, state: PodState, node: str) -> Option | None:
    """Returns the cheapest option on this node alone."""
    core = preemptor.core
    candidates = core._candidates.begin(preemptor.now)
    options = Planner(
        core.book, candidates, Areas(core.book, core.gangs), {name for name in NODES if name != node}
    ).plan([state])
    return None if options is None else options[0]


@pytest.mark.parametrize("seed", range(60))
def test_no_option_costs_less_than_its_bound(seed: int) -> None:
    rng = random.Random(seed)
    preemptor = filled(rng)
    core = preemptor.core
    asks: dict[str, object] = rng.choice(
        (
            {"gpus": 1},
            {"gpus": 2},
            {"gpus": 3},
            {"gpus": 0, "memory": "40Gi"},
            {"gpus": 0, "memory": "30Gi", "compute": 50},
        )
    )
    state = core.book.pods[preemptor.wait("high", **asks).metadata.uid]
    options = {name: way_on(preemptor, state, name) for name in NODES}
    bounds = {
        node.name: bound
        for bound, node in Bounds(
            core._candidates.begin(preemptor.now), list(core.book.nodes.values()), wait_for_release=True
        ).nodes(state, ())
    }
    for name, option in options.items():
        assert option is None or bounds[name] <= option.cost[:6]


@pytest.mark.parametrize("gpus", [4, 1])
def test_of_many_equally_full_nodes_one_is_tried(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    """Priority, price or names of the pods decide in advance which node is the cheapest, also where a pod that costs
    less there is of higher priority."""
    tried: set[str] = set()
    fit = attempt.fit

    def counted(*args: object) -> object:
        tried.add(args[2])  # type: ignore[arg-type]
        return fit(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(attempt, "fit", counted)
    rng = random.Random(1)
    preemptor = Preemptor(*(f"n{i}" for i in range(30)), gpus=4)
    for node in range(30):
        for gpu in range(4):
            preemptor.run(f"p{node}-{gpu}", f"n{node}", gpu, ran_s=rng.randint(1, 10_000), priority=rng.randint(0, 3))
    preemptor.wait("high", gpus=gpus)
    (plan,) = preemptor.plans()
    assert tried == {plan.beneficiaries[0].node}
