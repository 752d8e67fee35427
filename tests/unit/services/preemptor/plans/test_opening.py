"""How many pods without an option are looked at again soon, and until when."""

from __future__ import annotations

import pytest

from services.preemptor.plans import opening
from shared.contracts.preemption import Plan
from tests.support.harness.preemptor import Preemptor


def crowded(*, waiting: int) -> tuple[Preemptor, Plan]:
    """Two pods run on a node, and a plan evicts one of them for the first of those that wait."""
    preemptor = Preemptor("n", gpus=2)
    for gpu in range(2):
        preemptor.run(f"low{gpu}", "n", gpu)
    for number in range(waiting):
        preemptor.wait(f"high{number}", priority=200 - number)
    (plan,) = preemptor.plans()
    return preemptor, plan


def looked_at(preemptor: Preemptor, monkeypatch: pytest.MonkeyPatch, after_s: float) -> list[str]:
    """The pods for which a plan is looked for in the next tick."""
    seen: list[str] = []
    due = preemptor.core.pending.due

    def noting(planned: set[str], now: float) -> list[list[object]]:
        groups = due(planned, now)
        seen.extend(group[0].pod.metadata.name for group in groups)
        return groups

    with monkeypatch.context() as patch:
        patch.setattr(preemptor.core.pending, "due", noting)
        assert preemptor.plans(after_s=after_s) == []
    return seen


def test_pods_that_the_node_may_be_open_to_are_looked_at_again_after_half_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    preemptor, _ = crowded(waiting=4)
    assert looked_at(preemptor, monkeypatch, after_s=0.4) == []
    assert looked_at(preemptor, monkeypatch, after_s=0.2) == ["high1", "high2", "high3"]


def test_of_a_long_queue_the_first_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "NODES_AGAIN", 2)
    preemptor, _ = crowded(waiting=5)
    assert looked_at(preemptor, monkeypatch, after_s=0.6) == ["high1", "high2"]
    assert looked_at(preemptor, monkeypatch, after_s=0.6) == ["high1", "high2"]


def test_a_pod_that_may_preempt_nobody_there_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    preemptor, _ = crowded(waiting=1)
    preemptor.wait("equal", priority=0)
    assert preemptor.plans() == []
    assert looked_at(preemptor, monkeypatch, after_s=0.6) == []


def test_a_plan_that_goes_on_for_longer_makes_nobody_look_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    preemptor, plan = crowded(waiting=1)
    preemptor.reserve(plan)
    preemptor.evicted(plan)
    assert preemptor.plans(after_s=11.0) == []
    preemptor.wait("late")
    assert preemptor.plans() == []
    assert looked_at(preemptor, monkeypatch, after_s=0.6) == []
