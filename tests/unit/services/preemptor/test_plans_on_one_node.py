"""Other plans on a node where one is in progress: as soon as its victims end, and beside what is reserved for it."""

from __future__ import annotations

from typing import Any

import pytest

from services.preemptor import messages as m
from shared.contracts.facts import Put
from shared.contracts.preemption import HeldPlace, Plan, Reserved
from shared.model.affinity import Affinity, PodAffinity, PodAffinityTerm
from shared.model.grant import ContainerGrant, GpuShare, Grant
from tests.support import build
from tests.support.harness.cluster import STEP_S, Cluster
from tests.support.harness.preemptor import TOTAL_MIB, Preemptor

GRACE_S = 30


def cores(number: int) -> dict[str, Any]:
    return {"requests": {"cpu": str(number)}}


def reserve(preemptor: Preemptor, plan: Plan, *gpus: int, part: int = 1) -> None:
    """Placement has reserved these GPUs of node n for the plan's beneficiary, or one part in `part` of each, and the
    API server accepts the evictions."""
    shares = tuple(
        GpuShare(node="n", uuid=f"n-gpu-{i}", memory_mib=TOTAL_MIB // part, compute_milli=1000 // part) for i in gpus
    )
    given = ContainerGrant(strategy="advisory", gpus=shares)
    place = HeldPlace(node="n", grant=Grant(grant_id=f"reserved/{plan.plan_id}", term=1, containers={"c": given}))
    places = {plan.beneficiaries[0].uid: place} if gpus else {}
    preemptor.send(m.Answered(Reserved(plan_id=plan.plan_id, ok=True, places=places)))
    preemptor.evicted(plan)


def ending(preemptor: Preemptor, name: str) -> None:
    """The pod is seen with a deletion timestamp."""
    preemptor.send(m.FactsSeen((Put(object=build.ending(preemptor.pods[name], preemptor.now + GRACE_S)),)))


def with_first_plan(**low: Any) -> tuple[Preemptor, Plan]:
    """A node of two GPUs with a pod on each, and a plan that evicts one of them for `first`."""
    preemptor = Preemptor("n", gpus=2)
    for gpu in range(2):
        preemptor.run(f"low{gpu}", "n", gpu, ran_s=10 + gpu, **low)
    preemptor.wait("first", priority=200, **low)
    (plan,) = preemptor.plans()
    assert [victim.name for victim in plan.victims] == ["low0"]
    return preemptor, plan


@pytest.mark.parametrize("each", [{}, cores(32)], ids=["", "all of the CPU is requested"])
def test_a_second_plan_is_made_as_soon_as_the_victims_of_the_first_end(each: dict[str, Any]) -> None:
    preemptor, plan = with_first_plan(**each)
    preemptor.wait("second", **each)
    assert preemptor.plans() == []
    reserve(preemptor, plan, 0)
    assert preemptor.plans() == [], "that its victim ends is not seen yet"
    ending(preemptor, "low0")
    assert preemptor.victims() == [["low1"]]


def test_the_place_of_the_first_is_not_free_when_its_victim_is_gone() -> None:
    preemptor, plan = with_first_plan()
    reserve(preemptor, plan, 0)
    preemptor.gone("low0")
    preemptor.wait("second")
    assert preemptor.victims() == [["low1"]]


def test_nobody_is_evicted_where_the_first_plan_frees_enough() -> None:
    """Its victim has more of the GPU than the first pod takes: the second waits for the rest."""
    preemptor = Preemptor("n", gpus=2)
    preemptor.run("large", "n", 0)
    preemptor.run("dear", "n", 1, ran_s=9_999)
    half = {"gpus": 0, "memory": "40Gi", "compute": 50}
    preemptor.wait("first", priority=200, **half)
    (plan,) = preemptor.plans()
    assert [victim.name for victim in plan.victims] == ["large"]
    reserve(preemptor, plan, 0, part=2)
    ending(preemptor, "large")
    preemptor.wait("second", **half)
    assert preemptor.plans() == []


def test_nobody_is_evicted_where_the_first_plan_frees_enough_cpu() -> None:
    preemptor = Preemptor(gpus=3)
    preemptor.send(m.FactsSeen((Put(object=build.node("n", cpu="30")),)))
    preemptor.send(m.InventorySeen(build.inventory("n", gpus=3)))
    preemptor.run("large", "n", 0, **cores(20))
    preemptor.run("dear", "n", 1, ran_s=9_999, **cores(10))
    preemptor.wait("first", priority=200, gpus=1, **cores(1))
    (plan,) = preemptor.plans()
    assert [victim.name for victim in plan.victims] == ["large"]
    reserve(preemptor, plan, 0)
    ending(preemptor, "large")
    preemptor.wait("second", **cores(10))
    assert preemptor.plans() == []
    preemptor.wait("third", gpus=2, **cores(10))
    assert preemptor.victims() == [["dear"]]


@pytest.mark.parametrize("what", ["a gang", "a pod that has to be near another"])
def test_a_node_with_a_plan_is_closed_to(what: str) -> None:
    preemptor, plan = with_first_plan()
    reserve(preemptor, plan, 0)
    ending(preemptor, "low0")
    if what == "a gang":
        gang = {"annotations": {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}}
        half = {"gpus": 0, "memory": "40Gi", "compute": 50}
        for number in range(2):
            preemptor.wait(f"member{number}", **gang, **half)
    else:
        term = PodAffinityTerm(topology_key="kubernetes.io/hostname")
        near = PodAffinity(required_during_scheduling_ignored_during_execution=(term,))
        preemptor.wait("near", affinity=Affinity(pod_affinity=near))
    assert preemptor.plans() == []


def test_a_node_that_placement_refused_is_not_tried_again_soon() -> None:
    """While another plan begins, pods without an option are looked at twice a second."""
    preemptor = Preemptor("n", "m", gpus=2)
    preemptor.run("cheap", "n", 0, 1)
    for gpu in range(2):
        preemptor.run(f"dear{gpu}", "m", gpu, ran_s=9_999)
    preemptor.wait("first", priority=200, node_selector={"kubernetes.io/hostname": "m"})
    preemptor.wait("second")
    of_first, of_second = preemptor.plans()
    preemptor.reserve(of_second, ok=False, reason="a volume is elsewhere")
    assert [preemptor.plans(after_s=0.5) for _ in range(8)] == [[]] * 8
    assert of_first.plan_id in preemptor.core.executions


def test_a_node_is_closed_without_word_of_what_is_reserved_there() -> None:
    """Placement is of the version before and does not say it, or the plan does more than evict."""
    preemptor, plan = with_first_plan()
    reserve(preemptor, plan)
    ending(preemptor, "low0")
    preemptor.wait("second")
    assert preemptor.plans() == []
    preemptor.gone("low0")
    assert preemptor.plans() == []


def test_a_dry_run_names_the_victims_of_the_second_plan() -> None:
    preemptor, plan = with_first_plan()
    reserve(preemptor, plan, 0)
    ending(preemptor, "low0")
    preemptor.wait("second")
    answer = preemptor.core.dry_run("team", "second", preemptor.now)
    assert answer.plan is not None
    assert [victim.name for victim in answer.plan.victims] == ["low1"]


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_node_is_taken_over_in_one_grace_period(gpus: int) -> None:
    """With placement: eight pods, or four of two GPUs each, preempt as many on one node at the same time."""
    cluster = Cluster({"n": 8})
    for number in range(8 // gpus):
        cluster.arrive(f"low{number}", priority=0, gpus=gpus, grace_s=GRACE_S)
    for _ in range(10):
        cluster.step()
    assert cluster.api.pending() == []
    for number in range(8 // gpus):
        cluster.arrive(f"high{number}", priority=1, gpus=gpus)
    for _ in range(round(2 * GRACE_S / STEP_S)):
        cluster.step()
    assert {pod.metadata.name for pod in cluster.api.pending()} == {f"low{number}" for number in range(8 // gpus)}
    assert set(cluster.outcome.values()) == {"executed"}
    assert len(cluster.api.evictions) == 8 // gpus
