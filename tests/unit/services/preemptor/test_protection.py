"""Who is left alone after others of its kind have made room, and how many a namespace gives in an hour."""

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
    """One of a ReplicaSet's pods."""
    return cluster.core.book.pods[cluster.run(name, "n", gpu, owners=SET, ran_s=ran_s).metadata.uid]


def test_its_siblings_may_be_asked_though_one_of_them_has_given_way() -> None:
    """Else one eviction would shut a whole Deployment to everybody more important."""
    cluster, known = Cluster("n", gpus=3), Protection(FIRST_S, 0)
    first, sibling = (runs(cluster, f"old-{number}", number, ran_s=3600) for number in range(2))
    known.asked(first, cluster.now)
    known.ended(first.uid, cluster.now)
    assert not known.immune(sibling, cluster.now)
    known.asked(sibling, cluster.now)
    known.ended(sibling.uid, cluster.now + 100)
    cluster.now += 101
    successor = runs(cluster, "new", 2)
    assert known.immune(successor, cluster.now + FIRST_S - 1)
    assert not known.immune(successor, cluster.now + FIRST_S + 2), "its owner's pods have made room once each"


@pytest.mark.parametrize("generation", [1, 2, 3])
def test_who_comes_in_the_stead_of_a_successor_is_left_alone_for_twice_as_long(generation: int) -> None:
    cluster, known = Cluster("n", gpus=1), Protection(FIRST_S, 0)
    for number in range(generation):
        state = runs(cluster, f"pod-{number}")
        known.asked(state, cluster.now)
        cluster.now += 1_000.0 * 2**number
        known.ended(state.uid, cluster.now)
        cluster.gone(f"pod-{number}")
    last, promised_s = runs(cluster, "last"), FIRST_S * 2 ** (generation - 1)
    assert known.immune(last, cluster.now + promised_s - 1)
    assert not known.immune(last, cluster.now + promised_s + 2)


def test_of_a_set_that_fills_the_cluster_as_many_give_way_as_are_needed() -> None:
    cluster = Cluster("n", gpus=4, immunity_s=FIRST_S)
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


def test_a_namespace_gives_no_more_in_an_hour_than_it_may() -> None:
    """Plans of one moment count as much as what has ended."""
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


def test_what_has_ended_counts_for_an_hour() -> None:
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


def test_no_plan_asks_for_more_than_a_namespace_may_give() -> None:
    cluster = Cluster("n", gpus=2, evictions_per_hour=1)
    cluster.run("one", "n", 0)
    cluster.run("other", "n", 1)
    cluster.wait("large", gpus=2)
    assert cluster.plans() == []
    cluster.wait("small")
    assert [len(plan.victims) for plan in cluster.plans()] == [1]


def test_a_pod_that_got_another_owner_after_it_was_asked_is_remembered_under_both() -> None:
    cluster, known = Cluster("n", gpus=1), Protection(FIRST_S, 0)
    state = runs(cluster, "pod")
    known.asked(state, cluster.now)
    other = (OwnerReference(kind="ReplicaSet", name="new", uid="uid-new", controller=True),)
    cluster.say(m.FactsSeen((Put(object=build.newer(state.pod, owner_references=other)),)))
    known.asked(cluster.core.book.pods[state.uid], cluster.now + 1)
    assert {one.owner for one in known.changed()} == {"uid-set", "uid-new"}
    known.tick(cluster.now + 3600.5)
    known.ended(state.uid, cluster.now + 3600.6)
    assert [(one.owner, len(one.since)) for one in known.changed()] == [("uid-new", 1)]
