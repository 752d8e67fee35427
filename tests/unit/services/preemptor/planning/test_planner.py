"""Which victims the planner chooses."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from services.preemptor import messages as m
from shared.contracts.facts import Gone, Put
from shared.model.kube_object import OwnerReference
from shared.model.objects import Taint
from tests.support import build
from tests.support.harness.preemptor import TOTAL_MIB, Preemptor
from tests.unit.services.preemptor.planning.objects import budget


def test_one_pod_preempts_one() -> None:
    preemptor = Preemptor("n")
    preemptor.run("a", "n", 0)
    preemptor.run("b", "n", 1)
    preemptor.wait("high")
    assert [len(names) for names in preemptor.victims()] == [1]


def test_the_lowest_priority_is_preempted_first_however_long_it_has_run() -> None:
    preemptor = Preemptor("n")
    preemptor.run("old", "n", 0, priority=1, ran_s=90_000)
    preemptor.run("young", "n", 1, priority=2, ran_s=1)
    preemptor.wait("high")
    assert preemptor.victims() == [["old"]]


def test_of_equal_priority_the_pod_that_loses_least_is_preempted() -> None:
    preemptor = Preemptor("n")
    preemptor.run("old", "n", 0, ran_s=9_000)
    preemptor.run("young", "n", 1, ran_s=10)
    preemptor.wait("high")
    assert preemptor.victims() == [["young"]]


def test_a_declared_restart_cost_sets_the_price() -> None:
    preemptor = Preemptor("n")
    preemptor.run("old", "n", 0, ran_s=9_000, annotations={"kerf.dev/restart-cost": "5"})
    preemptor.run("young", "n", 1, ran_s=10)
    preemptor.wait("high")
    assert preemptor.victims() == [["old"]]


def test_a_declared_restart_cost_is_bounded_by_what_can_be_lost() -> None:
    """A pod may change it at any time: without a bound it would be the last victim among equals."""
    preemptor = Preemptor("n")
    preemptor.run("old", "n", 0, ran_s=9_000)
    preemptor.run("young", "n", 1, ran_s=10, annotations={"kerf.dev/restart-cost": "999999999"})
    preemptor.wait("high")
    assert preemptor.victims() == [["young"]]


def test_the_node_with_the_lowest_cost_is_chosen() -> None:
    preemptor = Preemptor("a", "b")
    for node, ran_s in (("a", 5_000), ("b", 50)):
        for gpu in (0, 1):
            preemptor.run(f"{node}{gpu}", node, gpu, ran_s=ran_s)
    preemptor.wait("high", gpus=2)
    assert preemptor.victims() == [["b0", "b1"]]


def test_no_more_slices_are_preempted_than_a_slice_needs() -> None:
    """40 GiB on a GPU of 80 that four pods of 20 share: two pods of one GPU are preempted."""
    preemptor = Preemptor("n", gpus=1)
    for number in range(4):
        preemptor.run(f"s{number}", "n", 0, memory_mib=20_480, ran_s=100 + number)
    preemptor.wait("high", gpus=0, memory="40Gi")
    assert preemptor.victims() == [["s0", "s1"]]


def test_one_large_pod_is_preempted_instead_of_several_small_ones_only_if_cheaper() -> None:
    preemptor = Preemptor("n")
    preemptor.run("large", "n", 0, 1, ran_s=10)
    preemptor.wait("high", gpus=2)
    assert preemptor.victims() == [["large"]]


def test_an_unnecessary_victim_is_put_back() -> None:
    """The cheapest victim is tried first, and turns out to be unnecessary."""
    preemptor = Preemptor("n", gpus=2)
    preemptor.run("cheap", "n", 0, memory_mib=1_024, ran_s=1)
    preemptor.run("whole", "n", 1, ran_s=100)
    preemptor.run("beside", "n", 0, memory_mib=1_024, ran_s=90_000)
    preemptor.wait("high")
    assert preemptor.victims() == [["whole"]]


@pytest.mark.parametrize(
    ("what", "rest"),
    [
        ("an equal", {"priority": 100}),
        ("a greater", {"priority": 1000}),
        ("one within its least run time", {"annotations": {"kerf.dev/min-runtime": "1h"}, "ran_s": 60}),
        ("one that is never preempted", {"annotations": {"kerf.dev/preemptible": "false"}}),
        ("another scheduler's", {"scheduler": "default-scheduler"}),
    ],
)
def test_ineligible_pods_are_not_preempted(what: str, rest: dict[str, object]) -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.run("it", "n", 0, **rest)  # type: ignore[arg-type]
    preemptor.wait("high")
    assert preemptor.victims() == [], what


def test_an_expired_minimum_run_time_does_not_protect() -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.run("it", "n", 0, annotations={"kerf.dev/min-runtime": "1h"}, ran_s=3_700)
    preemptor.wait("high")
    assert preemptor.victims() == [["it"]]


def test_no_plan_is_made_for_a_pod_that_never_preempts() -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.run("it", "n", 0)
    preemptor.wait("high", preemption_policy="Never")
    assert preemptor.victims() == []


def test_a_budget_keeps_its_pods_and_others_are_preempted() -> None:
    preemptor = Preemptor("n")
    preemptor.run("kept", "n", 0, ran_s=1, labels={"app": "a"})
    preemptor.run("free", "n", 1, ran_s=500)
    preemptor.send(m.FactsSeen((Put(object=budget(0, app="a")),)))
    preemptor.wait("high")
    assert preemptor.victims() == [["free"]]


def test_a_pod_under_two_budgets_is_not_preempted() -> None:
    preemptor = Preemptor("n")
    preemptor.send(
        m.FactsSeen(
            tuple(
                Put(object=msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, name=key)))
                for key, made in (("a", budget(5, app="a")), ("b", budget(5, tier="b")))
            )
        )
    )
    preemptor.run("both", "n", 0, ran_s=1, labels={"app": "a", "tier": "b"})
    preemptor.run("one", "n", 1, ran_s=9_000, labels={"app": "a"})
    preemptor.wait("high")
    assert preemptor.victims() == [["one"]]


def test_a_budget_of_one_allows_no_two_evictions() -> None:
    preemptor = Preemptor("n")
    for gpu in (0, 1):
        preemptor.run(f"p{gpu}", "n", gpu, labels={"app": "a"})
    preemptor.send(m.FactsSeen((Put(object=budget(1, app="a")),)))
    preemptor.wait("high", gpus=2)
    assert preemptor.victims() == []


def test_no_pod_is_preempted_on_nodes_that_do_not_admit_the_pod() -> None:
    preemptor = Preemptor("tainted", "other")
    preemptor.send(m.FactsSeen((Put(object=build.node("tainted", taints=(Taint(key="x", effect="NoSchedule"),))),)))
    preemptor.run("cheap", "tainted", 0, ran_s=1)
    preemptor.run("dear", "other", 0, ran_s=9_000)
    preemptor.run("dear2", "other", 1, ran_s=9_000, priority=1)
    preemptor.run("cheap2", "tainted", 1, ran_s=1)
    preemptor.wait("high")
    assert preemptor.victims() == [["dear"]]


def test_no_pod_is_preempted_on_gpus_of_an_unsuitable_model() -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.run("it", "n", 0)
    preemptor.wait("high", annotations={"kerf.dev/gpu-model": "T4"})
    assert preemptor.victims() == []


def test_two_plans_of_one_round_share_no_node() -> None:
    preemptor = Preemptor("a", "b")
    for node in ("a", "b"):
        for gpu in (0, 1):
            preemptor.run(f"{node}{gpu}", node, gpu)
    preemptor.wait("first")
    preemptor.wait("second")
    preemptor.wait("third")
    plans = preemptor.plans()
    assert [len(plan.victims) for plan in plans] == [1, 1]
    assert {b.node for plan in plans for b in plan.beneficiaries} == {"a", "b"}


def test_a_terminating_pod_is_not_preempted() -> None:
    preemptor = Preemptor("n", gpus=1)
    pod = preemptor.run("it", "n", 0)
    meta = msgspec.structs.replace(
        pod.metadata, resource_version=build.next_version(), deletion_timestamp="2026-11-21T00:00:00Z"
    )
    preemptor.send(m.FactsSeen((Put(object=msgspec.structs.replace(pod, metadata=meta)),)))
    preemptor.wait("high")
    assert preemptor.victims() == []


def test_replacements_are_protected_for_longer_each_time() -> None:
    owners = (OwnerReference(kind="ReplicaSet", name="set", uid="uid-set", controller=True),)

    def again(preemptor: Preemptor, name: str) -> list[list[str]]:
        pod = preemptor.run(name, "n", 0)
        meta = msgspec.structs.replace(pod.metadata, resource_version=build.next_version(), owner_references=owners)
        preemptor.pods[name] = msgspec.structs.replace(pod, metadata=meta)
        preemptor.send(m.FactsSeen((Put(object=preemptor.pods[name]),)))
        return preemptor.victims()

    preemptor = Preemptor("n", gpus=1, protection_s=300.0)
    preemptor.wait("high")
    preemptor.run("r0", "n", 0)
    preemptor.gone("r0")
    assert again(preemptor, "r1") == [["r1"]]
    (plan_id,) = preemptor.core.executions
    plan = preemptor.core.executions[plan_id].plan
    preemptor.reserve(plan)
    preemptor.evicted(plan)
    preemptor.send(m.Ended(plan_id, executed=False))
    preemptor.gone("r1")
    assert again(preemptor, "r2") == []
    preemptor.now += 301
    assert preemptor.victims() == [["r2"]]


def test_capacity_that_is_being_released_is_waited_for_but_not_forever() -> None:
    preemptor = Preemptor("n", gpus=1, leaving_s=60)
    ended = preemptor.run("ended", "n", 0, memory_mib=TOTAL_MIB - 1_024)
    preemptor.run("next", "n", 0, memory_mib=1_024, ran_s=1)
    preemptor.send(m.FactsSeen((Gone(object=ended),)))
    preemptor.wait("small", memory=f"{TOTAL_MIB - 1_024}Mi", gpus=0)
    for _ in range(30):
        assert preemptor.victims() == []
    preemptor.now += 60
    assert preemptor.victims() == [], "no other victim helps while the slice is still there"
    preemptor.send(m.GrantOver("grant-ended"))
    assert preemptor.victims() == [], "there is room"


def test_of_two_pods_that_expect_the_same_capacity_one_preempts() -> None:
    preemptor = Preemptor("a", "b", gpus=1)
    ended = preemptor.run("ended", "a", 0)
    preemptor.run("runs", "b", 0)
    preemptor.send(m.FactsSeen((Gone(object=ended),)))
    preemptor.wait("one")
    preemptor.wait("two")
    assert preemptor.victims() == [["runs"]]
    assert preemptor.victims() == []


def test_a_pod_that_exceeds_its_grace_period_is_not_waited_for() -> None:
    preemptor = Preemptor("a", "b", gpus=1)
    stuck = preemptor.run("stuck", "a", 0)
    preemptor.run("runs", "b", 0)
    at = datetime.fromtimestamp(preemptor.now - 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    meta = msgspec.structs.replace(stuck.metadata, deletion_timestamp=at, resource_version=build.next_version())
    preemptor.send(m.FactsSeen((Put(object=msgspec.structs.replace(stuck, metadata=meta)),)))
    preemptor.wait("high")
    assert preemptor.victims() == [["runs"]]


def test_a_migrated_pod_blocks_no_node_and_its_replacement_preempts_no_pod() -> None:
    """Its place is reserved: the replacement preempts no pod while it is pending."""
    owner = (OwnerReference(uid="job", kind="Job", name="train", controller=True),)
    preemptor = Preemptor("a", "b", gpus=2)
    preemptor.run("one", "a", 0, owners=owner, priority=5)
    preemptor.run("two", "a", 1, priority=5)
    preemptor.run("equal", "b", 0, priority=100)
    preemptor.wait("high", gpus=2)
    (plan,) = preemptor.plans()
    assert {(v.name, v.action, v.to) for v in plan.victims} == {("one", "move", "b"), ("two", "evict", "")}
    assert set(preemptor.reserve(plan)) == {"one", "two"}
    again = build.gpu_pod("one-again", gpus=1, priority=5)
    meta = msgspec.structs.replace(again.metadata, owner_references=owner)
    preemptor.send(m.FactsSeen((Put(object=msgspec.structs.replace(again, metadata=meta)),)))
    preemptor.send(m.Rejected(again.metadata.uid))
    assert preemptor.victims() == []


@pytest.mark.parametrize(("priority", "victims"), [(0, []), (1, [["idle"]])])
def test_an_opportunistic_pod_is_preempted_by_priority_as_any_other(priority: int, victims: list[list[str]]) -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.run("idle", "n", 0, memory_mib=81_920, annotations={"kerf.dev/tier": "opportunistic"}, ran_s=3_600)
    preemptor.wait("standard", priority=priority, gpus=0, memory="40Gi", compute=50)
    assert preemptor.victims() == victims
