"""Protection of the replacements of preempted pods, and the hourly budget of a namespace."""

from __future__ import annotations

import pytest

from services.preemptor import messages as m
from services.preemptor.protection import Protection, not_ahead
from shared.book.states import PodState
from shared.contracts.facts import Put
from shared.contracts.preemption import MIGRATIONS, Spared
from shared.model.kube_object import OwnerReference
from tests.support import build
from tests.support.harness.preemptor import Preemptor

SET = (OwnerReference(kind="ReplicaSet", name="set", uid="uid-set", controller=True),)
FIRST_S = 300.0


def runs(preemptor: Preemptor, name: str, gpu: int = 0, *, ran_s: int = 0) -> PodState:
    """A pod of a ReplicaSet."""
    return preemptor.core.book.pods[preemptor.run(name, "n", gpu, owners=SET, ran_s=ran_s).metadata.uid]


def test_siblings_of_a_preempted_pod_may_be_preempted() -> None:
    """Otherwise one eviction would protect a whole Deployment from all pods of higher priority."""
    preemptor, known = Preemptor("n", gpus=3), Protection(FIRST_S, 0)
    first, sibling = (runs(preemptor, f"old-{number}", number, ran_s=3600) for number in range(2))
    known.eviction_requested(first, preemptor.now)
    known.pod_ended(first.uid, preemptor.now)
    assert not known.is_protected(sibling, preemptor.now)
    known.eviction_requested(sibling, preemptor.now)
    known.pod_ended(sibling.uid, preemptor.now + 100)
    preemptor.now += 101
    successor = runs(preemptor, "new", 2)
    assert known.is_protected(successor, preemptor.now + FIRST_S - 1)
    assert not known.is_protected(successor, preemptor.now + FIRST_S + 2), "its owner's pods have made room once each"


@pytest.mark.parametrize("generation", [1, 2, 3])
def test_the_replacement_of_a_replacement_is_protected_for_twice_as_long(generation: int) -> None:
    preemptor, known = Preemptor("n", gpus=1), Protection(FIRST_S, 0)
    for number in range(generation):
        state = runs(preemptor, f"pod-{number}")
        known.eviction_requested(state, preemptor.now)
        preemptor.now += 1_000.0 * 2**number
        known.pod_ended(state.uid, preemptor.now)
        preemptor.gone(f"pod-{number}")
    last, promised_s = runs(preemptor, "last"), FIRST_S * 2 ** (generation - 1)
    assert known.is_protected(last, preemptor.now + promised_s - 1)
    assert not known.is_protected(last, preemptor.now + promised_s + 2)


def test_as_many_pods_of_one_set_are_preempted_as_needed() -> None:
    preemptor = Preemptor("n", gpus=4, protection_s=FIRST_S)
    for number in range(4):
        runs(preemptor, f"old-{number}", number, ran_s=3600)
    for number in range(3):
        preemptor.wait(f"high-{number}")
        (plan,) = preemptor.plans()
        (victim,) = plan.victims
        preemptor.reserve(plan)
        gpu = int(victim.name.removeprefix("old-"))
        preemptor.gone(victim.name)
        preemptor.run(f"high-{number}", "n", gpu, priority=100)
        preemptor.send(m.Ended(plan.plan_id, executed=True))


def test_a_namespaces_hourly_budget_covers_plans_of_one_moment() -> None:
    """Plans of the same moment count as well as evictions that happened."""
    preemptor = Preemptor("a", "b", gpus=2, evictions_per_hour=3)
    for node in ("a", "b"):
        for gpu in range(2):
            preemptor.run(f"low-{node}{gpu}", node, gpu, ran_s=3600)
    preemptor.wait("large", gpus=2)
    preemptor.wait("as-large", gpus=2)
    assert [len(plan.victims) for plan in preemptor.plans()] == [2]
    preemptor.wait("small")
    assert [len(plan.victims) for plan in preemptor.plans()] == [1]
    preemptor.wait("late")
    assert preemptor.plans() == []


def test_evictions_count_for_an_hour() -> None:
    preemptor = Preemptor("n", gpus=2, evictions_per_hour=1)
    for gpu in range(2):
        preemptor.run(f"low-{gpu}", "n", gpu)
    preemptor.wait("first")
    (plan,) = preemptor.plans()
    (gone,) = preemptor.reserve(plan)
    preemptor.evicted(plan)
    preemptor.gone(gone)
    preemptor.run("first", "n", int(gone[-1]), priority=100)
    preemptor.send(m.Ended(plan.plan_id, executed=True))
    preemptor.wait("second")
    assert preemptor.plans() == []
    assert preemptor.plans(after_s=3_500) == []
    assert [len(plan.victims) for plan in preemptor.plans(after_s=120)] == [1]


def test_no_plan_exceeds_the_hourly_budget_of_a_namespace() -> None:
    preemptor = Preemptor("n", gpus=2, evictions_per_hour=1)
    preemptor.run("one", "n", 0)
    preemptor.run("other", "n", 1)
    preemptor.wait("large", gpus=2)
    assert preemptor.plans() == []
    preemptor.wait("small")
    assert [len(plan.victims) for plan in preemptor.plans()] == [1]


def test_a_pod_that_changes_its_owner_during_eviction_is_recorded_under_both() -> None:
    preemptor, known = Preemptor("n", gpus=1), Protection(FIRST_S, 0)
    state = runs(preemptor, "pod")
    known.eviction_requested(state, preemptor.now)
    other = (OwnerReference(kind="ReplicaSet", name="new", uid="uid-new", controller=True),)
    preemptor.send(m.FactsSeen((Put(object=build.newer(state.pod, owner_references=other)),)))
    known.eviction_requested(preemptor.core.book.pods[state.uid], preemptor.now + 1)
    assert {one.owner for one in known.take_changed()} == {"uid-set", "uid-new"}
    known.tick(preemptor.now + 3600.5)
    known.pod_ended(state.uid, preemptor.now + 3600.6)
    assert [(one.owner, len(one.since)) for one in known.take_changed()] == [("uid-new", 1)]


def test_what_was_recorded_under_a_clock_that_was_ahead_ends_as_if_it_were_of_now() -> None:
    preemptor = Preemptor("n", gpus=1)
    now, ahead = preemptor.now, preemptor.now + 30 * 86_400
    record = Spared(owner="o", namespace="team", since=(ahead,), asked={"u": (ahead, 0)}, ended=(now - 5, ahead))
    preemptor.send(m.ProtectionRestored(record))
    protection = preemptor.core.protection
    assert protection.count_protected(now) == 1
    protection.tick(now + 2 * 3_600)
    assert protection.count_protected(now + 2 * 3_600) == 0
    migrations = Spared(owner=MIGRATIONS, namespace="", disturbed={"plan": (ahead, 7)})
    assert not_ahead(migrations, now).disturbed == {"plan": (now, 7)}
