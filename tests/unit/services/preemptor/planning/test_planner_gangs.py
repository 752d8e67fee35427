"""Gangs that preempt, and gangs that are preempted."""

from __future__ import annotations

import pytest

from services.preemptor import messages as m
from shared.contracts.facts import Put
from shared.model.kube_object import Meta
from shared.model.objects import Gang
from shared.model.subgroup import Subgroup
from tests.support import build
from tests.support.harness.preemptor import Preemptor
from tests.unit.services.preemptor.planning.objects import budget, gang


def test_a_plan_places_a_whole_gang_or_preempts_no_pod() -> None:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3"}
    preemptor = Preemptor("a", "b")
    for node in ("a", "b"):
        for gpu in (0, 1):
            preemptor.run(f"{node}{gpu}", node, gpu)
    for number in range(2):
        preemptor.wait(f"g{number}", annotations=notes)
    assert preemptor.victims() == []
    preemptor.wait("g2", annotations=notes)
    (plan,) = preemptor.plans()
    assert (len(plan.victims), len(plan.beneficiaries)) == (3, 3)
    assert {b.node for b in plan.beneficiaries} == {"a", "b"}


def test_a_gang_that_can_never_fit_preempts_no_pod() -> None:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3"}
    preemptor = Preemptor("n")
    for gpu in (0, 1):
        preemptor.run(f"low{gpu}", "n", gpu)
    for number in range(3):
        preemptor.wait(f"g{number}", annotations=notes)
    assert preemptor.victims() == []


def test_a_gang_is_preempted_as_a_whole() -> None:
    preemptor = Preemptor("a", "b", gpus=1)
    preemptor.run("g-0", "a", 0, **gang("g", 2))
    preemptor.run("g-1", "b", 0, **gang("g", 2))
    preemptor.wait("high")
    assert preemptor.victims() == [["g-0", "g-1"]]


def test_a_replica_that_the_plan_does_not_need_stays_with_all_its_pods() -> None:
    """The cheapest replica alone is too small, and with the two larger ones it is not needed."""
    preemptor = Preemptor("n", gpus=11)
    replicas = (((0,), (1,)), ((2, 3), (4,)), ((5, 6), (7, 8)), ((9,), (10,)))
    meta = Meta(name="podgroup.scheduling.run.ai/g", namespace="team", uid="g", resource_version="1")
    subgroups = tuple(Subgroup(name=f"r{k}", minimum=2) for k in range(len(replicas)))
    preemptor.send(m.FactsSeen(build.put(Gang(metadata=meta, subgroups=subgroups, min_subgroups=1))))
    for k, (replica, ran_s) in enumerate(zip(replicas, (100, 150, 300, 40_000), strict=True)):
        of = {"annotations": {"pod-group-name": "g"}, "labels": {"kai.scheduler/subgroup-name": f"r{k}"}}
        for i, gpus in enumerate(replica):
            preemptor.run(f"r{k}-{i}", "n", *gpus, ran_s=ran_s, **of)
    preemptor.wait("high", gpus=7)
    assert preemptor.victims() == [["r1-0", "r1-1", "r2-0", "r2-1"]]


def test_members_that_another_scheduler_has_placed_keep_no_gang_from_being_preempted() -> None:
    """The head of a Ray cluster has no GPU and is the default scheduler's; its workers are Kerf's."""
    preemptor = Preemptor("a", "b", gpus=1)
    preemptor.run("g-0", "a", 0, **gang("g", 3))
    preemptor.run("g-1", "b", 0, **gang("g", 3))
    head = build.pod("head", node="a", phase="Running", scheduler="default-scheduler", **gang("g", 3))
    preemptor.send(m.FactsSeen(build.put(head)))
    preemptor.wait("high")
    assert preemptor.victims() == [["g-0", "g-1"]]


def test_a_gangs_price_is_the_lost_work_of_all_members() -> None:
    preemptor = Preemptor("a", "b", "c", gpus=1)
    preemptor.run("g-0", "a", 0, ran_s=100, **gang("g", 2))
    preemptor.run("g-1", "b", 0, ran_s=100, **gang("g", 2))
    preemptor.run("alone", "c", 0, ran_s=150)
    preemptor.wait("high")
    assert preemptor.victims() == [["alone"]]


def test_a_gang_loses_no_more_members_than_needed() -> None:
    preemptor = Preemptor("n", gpus=3)
    for number in range(3):
        preemptor.run(f"g-{number}", "n", number, **gang("g", 3, least=2))
    preemptor.wait("high")
    assert preemptor.victims() == [["g-2"]]


def test_a_gang_below_its_minimum_is_preempted_as_a_whole() -> None:
    preemptor = Preemptor("n", gpus=3)
    for number in range(3):
        preemptor.run(f"g-{number}", "n", number, **gang("g", 3, least=2))
    preemptor.wait("high", gpus=2)
    assert preemptor.victims() == [["g-0", "g-1", "g-2"]]


@pytest.mark.parametrize("rest", [{"priority": 100}, {"labels": {"app": "kept"}}])
def test_a_gang_with_an_ineligible_member_is_not_preempted(rest: dict[str, object]) -> None:
    preemptor = Preemptor("a", "b", gpus=1)
    preemptor.send(m.FactsSeen((Put(object=budget(0, app="kept")),)))
    preemptor.run("g-0", "a", 0, **gang("g", 2))
    preemptor.run("g-1", "b", 0, **gang("g", 2), **rest)  # type: ignore[arg-type]
    preemptor.wait("high")
    assert preemptor.victims() == []


def test_capacity_that_a_gang_frees_on_other_nodes_serves_the_same_plan() -> None:
    preemptor = Preemptor("a", "b", gpus=1)
    preemptor.run("g-0", "a", 0, **gang("g", 2))
    preemptor.run("g-1", "b", 0, **gang("g", 2))
    for number in range(2):
        preemptor.wait(f"high-{number}", **gang("h", 2))
    (plan,) = preemptor.plans()
    assert sorted(v.name for v in plan.victims) == ["g-0", "g-1"]
    assert sorted(b.node for b in plan.beneficiaries) == ["a", "b"]


def test_capacity_freed_for_a_later_member_serves_an_earlier_one_too() -> None:
    preemptor = Preemptor("n", gpus=3)
    preemptor.run("cheap", "n", 0, ran_s=10)
    preemptor.run("dear", "n", 1, 2, ran_s=1_000)
    for number in range(2):
        preemptor.wait(f"high-{number}", **gang("h", 2))
    assert preemptor.victims() == [["dear"]]


def subgroup(name: str, tree: str) -> dict[str, dict[str, str]]:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-subgroups": tree, "kerf.dev/gang-subgroup": name}
    return {"annotations": notes}


def test_each_subgroup_gives_up_what_it_can_spare_before_the_whole_gang_ends() -> None:
    preemptor = Preemptor("n", gpus=4)
    for number in range(4):
        preemptor.run(f"g-{number}", "n", number, **subgroup("ab"[number // 2], "a=1,b=1"))
    preemptor.wait("high", gpus=2)
    assert preemptor.victims() == [["g-1", "g-3"]]


def test_a_plan_places_the_minimum_of_each_subgroup() -> None:
    preemptor = Preemptor("n", gpus=4)
    for gpu in range(4):
        preemptor.run(f"low{gpu}", "n", gpu)
    for number in range(3):
        preemptor.wait(f"w{number}", **subgroup("workers", "head=1,workers=2"))
    assert preemptor.victims() == []
    preemptor.wait("z-head", **subgroup("head", "head=1,workers=2"))
    (plan,) = preemptor.plans()
    assert (len(plan.victims), sorted(b.name for b in plan.beneficiaries)) == (3, ["w0", "w1", "z-head"])


def test_nothing_is_preempted_for_subgroups_with_a_topology_of_their_own() -> None:
    preemptor = Preemptor("n", gpus=2)
    for gpu in range(2):
        preemptor.run(f"low{gpu}", "n", gpu)
    for name in ("a", "b"):
        preemptor.wait(f"high-{name}", **subgroup(name, "a=1@node,b=1@node"))
    assert preemptor.victims() == []


@pytest.mark.parametrize("later", [False, True])
def test_two_plans_take_no_gang_below_its_minimum_by_one_member_each(later: bool) -> None:
    """It can spare one: the second plan ends what the first leaves of it, or is not made before the first is over."""
    preemptor = Preemptor("a", "b", "c", "d", gpus=1)
    for number, node in enumerate("abcd"):
        preemptor.run(f"g-{number}", node, 0, **gang("g", 4, least=3))
    preemptor.wait("first", gpus=1)
    if later:
        (plan,) = preemptor.plans()
        preemptor.reserve(plan)
        preemptor.evicted(plan)  # the feed has not shown that it ends
        first = [["g-3"]]
    preemptor.wait("second", gpus=1)
    plans = preemptor.victims() if not later else [*first, *preemptor.victims()]
    assert plans == [["g-3"], ["g-0", "g-1", "g-2"]]


def test_members_count_again_when_the_plan_that_would_have_evicted_them_is_over() -> None:
    preemptor = Preemptor("a", "b", "c", "d", gpus=1)
    for number, node in enumerate("abcd"):
        preemptor.run(f"g-{number}", node, 0, **gang("g", 4, least=3))
    preemptor.wait("first", gpus=1)
    (plan,) = preemptor.plans()
    preemptor.gone("first")
    preemptor.send(m.Ended(plan.plan_id, executed=False))
    preemptor.wait("second", gpus=1)
    assert preemptor.victims() == [["g-3"]]


def test_a_member_that_is_only_suspended_keeps_its_place_in_its_gang() -> None:
    """The end of another member takes it along, and it is promised: nothing is planned meanwhile."""
    preemptor = Preemptor("a", "b", gpus=1)
    slice_ = {"memory_mib": 40_960, "compute_milli": 1000, "strategy": "interposer"}
    preemptor.run("g-0", "a", 0, **slice_, **gang("g", 2))
    preemptor.run("g-1", "b", 0, **gang("g", 2))
    preemptor.wait("first", gpus=0, memory="40960Mi", compute=50)
    assert preemptor.victims() == [["g-0"]]
    preemptor.wait("second", gpus=1)
    assert preemptor.victims() == []
