"""Protection of the replacements of preempted pods, and the hourly budget of a namespace."""

from __future__ import annotations

import pytest

from services.preemptor import messages as m
from services.preemptor.protection import Protection
from shared.book.states import PodState
from shared.contracts.facts import Put
from shared.model.kube_object import OwnerReference
from tests.support import build
from tests.unit.services.preemptor.world import Cluster

SET = (OwnerReference(kind="ReplicaSet", name="set", uid="uid-set", controller=True),)
FIRST_S = 300.0


def runs(cluster: Cluster, name: str, gpu: int = 0, *, ran_s: int = 0) -> PodState:
    """A pod of a ReplicaSet."""
    return cluster.core.book.pods[cluster.run(name, "n", gpu, owners=SET, ran_s=ran_s).metadata.uid]


def test_siblings_of_a_preempted_pod_may_be_preempted() -> None:
    """Otherwise one eviction would protect a whole Deployment from all pods of higher priority."""
    cluster, known = Cluster("n", gpus=3), Protection(FIRST_S, 0)
    first, sibling = (runs(cluster, f"old-{number}", number, ran_s=3600) for number in range(2))
    known.eviction_requested(first, cluster.now)
    known.pod_ended(first.uid, cluster.now)
    assert not known.is_protected(sibling, cluster.now)
    known.eviction_requested(sibling, cluster.now)
    known.pod_ended(sibling.uid, cluster.now + 100)
    cluster.now += 101
    successor = runs(cluster, "new", 2)
    assert known.is_protected(successor, cluster.now + FIRST_S - 1)
    assert not known.is_protected(successor, cluster.now + FIRST_S + 2), "its owner's pods have made room once each"


@pytest.mark.parametrize("generation", [1, 2, 3])
def test_the_replacement_of_a_replacement_is_protected_for_twice_as_long(generation: int) -> None:
    cluster, known = Cluster("n", gpus=1), Protection(FIRST_S, 0)
    for number in range(generation):
        state = runs(cluster, f"pod-{number}")
        known.eviction_requested(state, cluster.now)
        cluster.now += 1_000.0 * 2**number
        known.pod_ended(state.uid, cluster.now)
        cluster.gone(f"pod-{number}")
    last, promised_s = runs(cluster, "last"), FIRST_S * 2 ** (generation - 1)
    assert known.is_protected(last, cluster.now + promised_s - 1)
    assert not known.is_protected(last, cluster.now + promised_s + 2)


def test_as_many_pods_of_one_set_are_preempted_as_needed() -> None:
    cluster = Cluster("n", gpus=4, protection_s=FIRST_S)
    for number in range(4):
        runs(cluster, f"old-{number}", number, ran_s=3600)
    for number in range(3):
        cluster.wait(f"high-{number}")
        (plan,) = cluster.plans()
        (victim,) = plan.victims
        cluster.reserve(plan)
        gpu = int(victim.name.removeprefix("old-"))
        cluster.gone(victim.name)
        cluster.run(f"high-{number}", "n", gpu, priority=100)
        cluster.say(m.Ended(plan.plan_id, executed=True))


def test_a_namespaces_hourly_budget_covers_plans_of_one_moment() -> None:
    """Plans of the same moment count as well as evictions that happened."""
    cluster = Cluster("a", "b", gpus=2, evictions_per_hour=3)
    for node in ("a", "b"):
        for gpu in range(2):
            cluster.run(f"low-{node}{gpu}", node, gpu, ran_s=3600)
    cluster.wait("large", gpus=2)
    cluster.wait("as-large", gpus=2)
    assert [len(plan.victims) for plan in cluster.plans()] == [2]
    cluster.wait("small")
    assert [len(plan.victims) for plan in cluster.plans()] == [1]
    cluster.wait("late")
    assert cluster.plans() == []


def test_evictions_count_for_an_hour() -> None:
    cluster = Cluster("n", gpus=2, evictions_per_hour=1)
    for gpu in range(2):
        cluster.run(f"low-{gpu}", "n", gpu)
    cluster.wait("first")
    (plan,) = cluster.plans()
    (gone,) = cluster.reserve(plan)
    cluster.evicted(plan)
    cluster.gone(gone)
    cluster.run("first", "n", int(gone[-1]), priority=100)
    cluster.say(m.Ended(plan.plan_id, executed=True))
    cluster.wait("second")
    assert cluster.plans() == []
    assert cluster.plans(after_s=3_500) == []
    assert [len(plan.victims) for plan in cluster.plans(after_s=120)] == [1]


def test_no_plan_exceeds_the_hourly_budget_of_a_namespace() -> None:
    cluster = Cluster("n", gpus=2, evictions_per_hour=1)
    cluster.run("one", "n", 0)
    cluster.run("other", "n", 1)
    cluster.wait("large", gpus=2)
    assert cluster.plans() == []
    cluster.wait("small")
    assert [len(plan.victims) for plan in cluster.plans()] == [1]


def test_a_pod_that_changes_its_owner_during_eviction_is_recorded_under_both() -> None:
    cluster, known = Cluster("n", gpus=1), Protection(FIRST_S, 0)
    state = runs(cluster, "pod")
    known.eviction_requested(state, cluster.now)
    other = (OwnerReference(kind="ReplicaSet", name="new", uid="uid-new", controller=True),)
    cluster.say(m.FactsSeen((Put(object=build.newer(state.pod, owner_references=other)),)))
    known.eviction_requested(cluster.core.book.pods[state.uid], cluster.now + 1)
    assert {one.owner for one in known.take_changed()} == {"uid-set", "uid-new"}
    known.tick(cluster.now + 3600.5)
    known.pod_ended(state.uid, cluster.now + 3600.6)
    assert [(one.owner, len(one.since)) for one in known.take_changed()] == [("uid-new", 1)]
