"""How much the preemptor examines in a tick: candidates are built and refreshed a few at a time."""

from __future__ import annotations

import pytest

from services.preemptor import core, pending_pods
from services.preemptor import messages as m
from services.preemptor.planning import victims
from shared.book import disruption_cost
from shared.book.book import Book
from shared.book.disruption_cost import DisruptionCost
from shared.book.states import PodState
from shared.contracts.facts import Put
from shared.model.affinity import LabelSelector
from shared.model.kube_object import Meta
from shared.model.objects import DisruptionBudgetSpec, DisruptionBudgetStatus, PodDisruptionBudget
from tests.support import build
from tests.support.harness.preemptor import Preemptor


def test_one_tick_plans_no_longer_than_the_lease_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other groups are planned in the next tick, the highest priority first."""
    monkeypatch.setattr(core, "MAX_NODES_CHECKED", 3 + 300 + 1)
    preemptor = Preemptor("a", "b", "c", gpus=1)
    for name in "abc":
        preemptor.run(f"low-{name}", name, 0)
    for priority in (1, 3, 2):
        preemptor.wait(f"high-{priority}", priority=priority)
    assert [[b.name for plan in preemptor.plans() for b in plan.beneficiaries] for _ in range(3)] == [
        ["high-3", "high-2"],
        ["high-1"],
        [],
    ]


def test_groups_that_are_planned_in_vain_again_and_again_keep_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are due again before those behind them have been looked at."""
    monkeypatch.setattr(core, "MAX_NODES_CHECKED", 2 + 300 + 1)  # two groups
    preemptor = Preemptor("a", "b", gpus=1)
    preemptor.run("equal", "a", 0, priority=50)
    preemptor.run("low", "b", 0)
    for number in range(40):
        preemptor.wait(f"vain-{number:02}", priority=100, node_selector={"kubernetes.io/hostname": "nowhere"})
    preemptor.wait("high", priority=50)
    found = [[b.name for plan in preemptor.plans(after_s=1) for b in plan.beneficiaries] for _ in range(60)]
    assert ["high"] in found


def made_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the nodes whose prices are computed from now on."""
    made: list[str] = []

    def price_of(state: PodState, book: Book, now: float) -> DisruptionCost:
        made.append(state.charged)
        return disruption_cost.price_of(state, book, now)

    monkeypatch.setattr(victims, "price_of", price_of)
    return made


@pytest.mark.parametrize("proposes", [False, True])
def test_a_tick_builds_candidates_of_limited_nodes_and_planning_waits_for_all(
    monkeypatch: pytest.MonkeyPatch, proposes: bool
) -> None:
    """This also holds for a standby instance and without pending pods.

    The first plan finds the candidates.
    """
    monkeypatch.setattr(victims, "MAX_NODES_BUILT", 2)
    candidates = made_on(monkeypatch)
    preemptor = Preemptor(*"abcde", gpus=1)
    for number, name in enumerate("abcde"):
        preemptor.run(f"low-{name}", name, 0, ran_s=100 - number)
    preemptor.wait("high")
    seen = []
    for _ in range(3):
        candidates.clear()
        preemptor.now += 1
        commands = preemptor.send(m.Tick(proposes=proposes))
        seen.append(set(candidates))
        assert bool(commands) == (proposes and len(seen) == 3)
    assert [len(nodes) for nodes in seen] == [2, 2, 1]
    candidates.clear()
    if not proposes:
        assert preemptor.victims() == [["low-e"]]
        assert candidates == []


def test_a_dry_run_says_that_not_all_nodes_have_been_examined(
    monkeypatch: pytest.MonkeyPatch, preemptor: Preemptor
) -> None:
    monkeypatch.setattr(victims, "MAX_NODES_BUILT", 1)
    answers = [preemptor.core.dry_run("team", "high", preemptor.now) for _ in range(2)]
    assert [answer.plan is None for answer in answers] == [True, False]
    assert answers[0].sentence == "not all nodes have been examined yet; ask again in a few seconds"


def test_a_round_rebuilds_limited_changed_nodes_and_leaves_out_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    preemptor = Preemptor(*"abc", gpus=1)
    for number, name in enumerate("abc"):
        preemptor.run(f"low-{name}", name, 0, ran_s=100 - number)
    assert preemptor.plans() == []
    monkeypatch.setattr(victims, "MAX_NODES_BUILT", 0)
    monkeypatch.setattr(victims, "MAX_NODES_RENEWED", 0)
    for name in "bc":
        preemptor.send(m.FactsSeen((Put(object=build.newer(preemptor.pods[f"low-{name}"])),)))
    preemptor.wait("high")
    assert preemptor.victims() == [["low-a"]]
    preemptor.wait("other")
    assert preemptor.victims() == []
    monkeypatch.undo()
    assert preemptor.victims() == [["low-c"]]


def put_budget(preemptor: Preemptor, allowed: int, label: str = "kept") -> None:
    meta = Meta(name="budget", namespace="team", uid="uid-budget", resource_version=build.next_version())
    spec = DisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": label}))
    preemptor.send(
        m.FactsSeen(
            (
                Put(
                    object=PodDisruptionBudget(
                        metadata=meta, spec=spec, status=DisruptionBudgetStatus(disruptions_allowed=allowed)
                    )
                ),
            )
        )
    )


def test_current_budgets_apply_to_candidates_built_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget did not exist before, or allowed another number, or selected other pods.

    Candidates are not built again for a budget whose selector is known.
    """
    preemptor = Preemptor("a", "b", gpus=1)
    preemptor.run("kept", "a", 0, ran_s=1, labels={"app": "kept"})
    preemptor.run("dear", "b", 0, ran_s=9_000)
    preemptor.wait("high")

    def victims_with(allowed: int, label: str = "kept") -> list[str]:
        put_budget(preemptor, allowed, label)
        preemptor.send(m.Tick(proposes=False))
        answer = preemptor.core.dry_run("team", "high", preemptor.now)
        assert answer.plan is not None
        return [victim.name for victim in answer.plan.victims]

    preemptor.send(m.Tick(proposes=False))
    assert victims_with(0) == ["dear"]
    candidates = made_on(monkeypatch)
    assert victims_with(1) == ["kept"]
    assert victims_with(0) == ["dear"]
    assert candidates == []
    assert victims_with(0, "others") == ["kept"]


def test_idle_ticks_rebuild_changed_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = made_on(monkeypatch)
    preemptor = Preemptor(*"abc", gpus=1)
    for name in "abc":
        preemptor.run(f"low-{name}", name, 0)
    preemptor.plans()
    preemptor.send(m.FactsSeen((Put(object=build.newer(preemptor.pods["low-b"])),)))
    candidates.clear()
    preemptor.plans()
    assert candidates == ["b"] * len(candidates) != []
    candidates.clear()
    preemptor.plans()
    assert candidates == []


def test_prices_of_unchanged_nodes_are_refreshed_a_few_per_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(victims, "MAX_NODES_RENEWED", 1)
    priced = made_on(monkeypatch)
    preemptor = Preemptor("a", "b", "c", gpus=1)
    for name in "abc":
        preemptor.run(f"low-{name}", name, 0)
    preemptor.wait("high")
    made = []
    for _ in range(4):
        priced.clear()
        preemptor.now += 20
        preemptor.core.dry_run("team", "high", preemptor.now)
        made.append(set(priced))
    assert made == [{"a", "b", "c"}, {"a"}, {"b"}, {"c"}]


@pytest.mark.parametrize("after_s", [0.1, victims.LOOK_S])
def test_a_node_that_goes_with_its_pods_is_forgotten(after_s: float) -> None:
    """Nodes that are gone are looked for once a second; what changed on them is looked at before."""
    preemptor = Preemptor("a", "b", gpus=1)
    for name in "ab":
        preemptor.run(f"low-{name}", name, 0)
    preemptor.plans()
    pod, node = preemptor.pods["low-a"], preemptor.core.book.nodes["a"].object
    preemptor.send(m.FactsSeen(build.gone(pod, node)))
    preemptor.send(m.AgentLost("a"))
    preemptor.wait("high")
    plans = [*preemptor.plans(after_s), *preemptor.plans()]
    assert [b.node for plan in plans for b in plan.beneficiaries] == ["b"]
    preemptor.plans(2 * victims.KNOWN_S)


def test_on_a_node_that_comes_back_pods_are_preempted_again() -> None:
    """Its agent had never left, and does not report its GPUs once more."""
    preemptor = Preemptor("a", gpus=1)
    preemptor.run("low", "a", 0)
    node = preemptor.core.book.nodes["a"].object
    assert node is not None
    preemptor.send(m.FactsSeen(build.gone(node)))
    preemptor.wait("high")
    assert preemptor.plans() == []
    preemptor.send(m.FactsSeen((Put(object=node),)))
    (plan,) = preemptor.plans(pending_pods.AGAIN_S)
    assert preemptor.reserve(plan) == ["low"]
