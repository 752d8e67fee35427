"""Which victims the planner chooses."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from services.preemptor import messages as m
from shared.contracts.facts import Gone, Put
from shared.model.affinity import LabelSelector
from shared.model.kube_object import Meta, OwnerReference
from shared.model.objects import DisruptionBudgetSpec, DisruptionBudgetStatus, PodDisruptionBudget, Taint
from shared.model.suspension import Suspension, encode_suspension
from tests.support import build
from tests.support.harness.preemptor import TOTAL_MIB, Preemptor


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


def budget(allowed: int, **labels: str) -> PodDisruptionBudget:
    meta = Meta(
        name=f"b-{'-'.join(labels.values())}",
        namespace="team",
        uid=f"uid-{labels}",
        resource_version=build.next_version(),
    )
    return PodDisruptionBudget(
        metadata=meta,
        spec=DisruptionBudgetSpec(selector=LabelSelector(match_labels=labels)),
        status=DisruptionBudgetStatus(disruptions_allowed=allowed),
    )


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


def gang(name: str, size: int, least: int = 0) -> dict[str, dict[str, str]]:
    notes = {"kerf.dev/gang": name, "kerf.dev/gang-size": str(size)}
    return {"annotations": notes | ({"kerf.dev/gang-min": str(least)} if least else {})}


def test_a_gang_is_preempted_as_a_whole() -> None:
    preemptor = Preemptor("a", "b", gpus=1)
    preemptor.run("g-0", "a", 0, **gang("g", 2))
    preemptor.run("g-1", "b", 0, **gang("g", 2))
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


# --- between queues -----------------------------------------------------------------------------------------------


def in_queue(name: str) -> dict[str, dict[str, str]]:
    return {"labels": {"kerf.dev/queue": name}}


def two_queues(preemptor: Preemptor, more: str = "") -> None:
    policy = f"queues: [{{name: a, guaranteed: {{gpus: 1}}}}, {{name: b, guaranteed: {{gpus: 1}}{more}}}]"
    preemptor.send(m.FactsSeen((Put(object=build.queues(policy)),)))


def test_borrowed_capacity_is_reclaimed_at_equal_priority() -> None:
    preemptor = Preemptor("n", gpus=2)
    two_queues(preemptor)
    for number in range(2):
        preemptor.run(f"a-{number}", "n", number, **in_queue("a"))
    preemptor.wait("b-0", priority=0, **in_queue("b"))
    assert preemptor.victims() == [["a-1"]]


def test_a_guarantee_is_not_preempted_by_another_queue_at_any_priority() -> None:
    preemptor = Preemptor("n", gpus=2)
    two_queues(preemptor)
    preemptor.run("a-0", "n", 0, **in_queue("a"))
    preemptor.run("b-0", "n", 1, priority=50, **in_queue("b"))
    preemptor.wait("b-1", priority=100, **in_queue("b"))
    assert preemptor.victims() == [["b-0"]], "its own queue's, which is of lower priority"


def test_no_pod_preempts_beyond_its_queues_quota() -> None:
    preemptor = Preemptor("n", gpus=3)
    two_queues(preemptor, ", limit: {gpus: 1}")
    for number in range(2):
        preemptor.run(f"a-{number}", "n", number, **in_queue("a"))
    preemptor.run("b-0", "n", 2, **in_queue("b"))
    preemptor.wait("b-1", **in_queue("b"))
    assert preemptor.victims() == [["b-0"]]


def test_members_of_a_gang_share_a_budget_and_preempt_others_beyond_it() -> None:
    """Each of the cheapest victims may be evicted alone, but not all of them."""
    preemptor = Preemptor("a", "b", gpus=2)
    for number in range(2):
        preemptor.run(f"cheap-{number}", "a", number, labels={"app": "kept"}, ran_s=10)
        preemptor.run(f"dear-{number}", "b", number, ran_s=1_000)
    preemptor.send(m.FactsSeen((Put(object=budget(1, app="kept")),)))
    for number in range(2):
        preemptor.wait(f"high-{number}", annotations={"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"})
    ((one, other),) = preemptor.victims()
    assert one.startswith("cheap")
    assert other.startswith("dear")


def test_plans_in_progress_count_against_budgets() -> None:
    preemptor = Preemptor("a", "b", gpus=1)
    preemptor.run("kept-a", "a", 0, labels={"app": "kept"})
    preemptor.run("kept-b", "b", 0, labels={"app": "kept"})
    preemptor.send(m.FactsSeen((Put(object=budget(1, app="kept")),)))
    preemptor.wait("high-0")
    assert len(preemptor.victims()) == 1
    preemptor.wait("high-1")
    assert preemptor.victims() == []


def test_plans_of_one_round_count_against_budgets() -> None:
    preemptor = Preemptor("a", "b", gpus=1)
    preemptor.run("kept-a", "a", 0, labels={"app": "kept"})
    preemptor.run("kept-b", "b", 0, labels={"app": "kept"})
    preemptor.send(m.FactsSeen((Put(object=budget(1, app="kept")),)))
    preemptor.wait("high-0")
    preemptor.wait("high-1")
    assert len(preemptor.victims()) == 1


# --- gentler than an end ------------------------------------------------------------------------------------------


def soft(
    preemptor: Preemptor, name: str, node: str = "n", gpu: int = 0, *, gib: int = 20, milli: int = 500, **rest: object
) -> None:
    """A slice with enforced limits, which can be throttled and paused."""
    preemptor.run(name, node, gpu, memory_mib=gib * 1_024, compute_milli=milli, strategy="interposer", **rest)


def asks(gib: int, percent: int) -> dict[str, object]:
    return {"gpus": 0, "memory": f"{gib}Gi", "compute": percent}


def actions(preemptor: Preemptor) -> list[tuple[str, str]]:
    (plan,) = preemptor.plans()
    return sorted((victim.name, victim.action) for victim in plan.victims)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(asks(20, 40), [("b", "throttle")], id="compute alone is lacking: one is throttled"),
        pytest.param(asks(20, 90), [("a", "throttle"), ("b", "throttle")], id="both"),
        pytest.param(asks(20, 95), [("a", "pause"), ("b", "pause")], id="to the last per cent: both pause"),
        pytest.param(asks(60, 10), [("b", "evict")], id="memory is lacking: nothing but an end gives it back"),
    ],
)
def test_the_least_severe_sufficient_action_is_chosen(
    wanted: dict[str, object], expected: list[tuple[str, str]]
) -> None:
    preemptor = Preemptor("n", gpus=1)
    soft(preemptor, "a", ran_s=100)
    soft(preemptor, "b", ran_s=50)
    preemptor.wait("high", **wanted)  # type: ignore[arg-type]
    assert actions(preemptor) == expected


def test_throttling_on_one_node_precedes_a_cheap_eviction_on_another() -> None:
    preemptor = Preemptor("a", "b", gpus=1)
    soft(preemptor, "soft", "a", milli=1_000, ran_s=90_000)
    preemptor.run("cheap", "b", 0, ran_s=1)
    preemptor.wait("high", **asks(20, 50))  # type: ignore[arg-type]
    assert actions(preemptor) == [("soft", "throttle")]


def test_a_suspended_pod_is_not_suspended_again_and_may_be_evicted() -> None:
    preemptor = Preemptor("n", gpus=1)
    soft(preemptor, "low", milli=1_000, gib=40, annotations={"kerf.dev/suspended": '{"action":"pause","plan_id":"p"}'})
    soft(preemptor, "first", milli=1_000, gib=20, priority=100)
    preemptor.wait("high", **asks(40, 10), priority=50)  # type: ignore[arg-type]
    assert preemptor.victims() == [], "it is suspended already, and no pod of lower priority has the compute"
    preemptor.wait("other", **asks(60, 0), priority=50)  # type: ignore[arg-type]
    assert actions(preemptor) == [("low", "evict")]


def test_throttling_one_member_leaves_the_gang_running() -> None:
    preemptor = Preemptor("a", "b", gpus=1)
    soft(preemptor, "g-0", "a", milli=1_000, **gang("g", 2))
    soft(preemptor, "g-1", "b", milli=1_000, **gang("g", 2))
    preemptor.wait("high", **asks(20, 50))  # type: ignore[arg-type]
    assert len(actions(preemptor)) == 1


def test_a_plan_that_only_suspends_evicts_no_pod() -> None:
    preemptor = Preemptor("n", gpus=1)
    soft(preemptor, "low", milli=1_000)
    preemptor.wait("high", **asks(20, 50))  # type: ignore[arg-type]
    (plan,) = preemptor.plans()
    assert (plan.price_gpu_seconds, plan.victims[0].keeps_milli) == (0, 100)
    assert preemptor.reserve(plan) == []
    assert (
        preemptor.core.dry_run("team", "high", preemptor.now).sentence
        == "1 pod would be throttled for a while and lose nothing but time: this plan is in progress"
    )


def test_fair_shares_are_reclaimed_after_a_wait_and_guarantees_at_once() -> None:
    preemptor = Preemptor("n", gpus=2)
    preemptor.send(
        m.FactsSeen((Put(object=build.queues("queues: [{name: a}, {name: b}, {name: c, guaranteed: {gpus: 1}}]")),))
    )
    for number in range(2):
        preemptor.run(f"a-{number}", "n", number, ran_s=100, **in_queue("a"))
    preemptor.wait("b-0", priority=0, **in_queue("b"))
    assert preemptor.victims() == [], "it has waited for a second, and a run of 100 would be lost"
    preemptor.now += 120
    assert preemptor.victims() == [["a-1"]], (
        "a run of 100 seconds when the wait began, however long it has gone on since"
    )
    preemptor = Preemptor("n", gpus=2)
    preemptor.send(m.FactsSeen((Put(object=build.queues("queues: [{name: a}, {name: c, guaranteed: {gpus: 1}}]")),)))
    for number in range(2):
        preemptor.run(f"a-{number}", "n", number, ran_s=100, **in_queue("a"))
    preemptor.wait("c-0", priority=0, **in_queue("c"))
    assert preemptor.victims() == [["a-1"]]


def test_pods_are_checkpointed_if_the_setting_allows_it() -> None:
    preemptor = Preemptor("n", gpus=1, checkpoints=True)
    soft(preemptor, "low", gib=60, milli=500)
    preemptor.wait("high", **asks(60, 20))  # type: ignore[arg-type]
    assert actions(preemptor) == [("low", "checkpoint")]


def test_a_pod_whose_suspension_failed_may_only_be_evicted() -> None:
    preemptor = Preemptor("n", gpus=1, checkpoints=True)
    soft(preemptor, "low", gib=60, milli=500)
    preemptor.wait("high", **asks(60, 20))  # type: ignore[arg-type]
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    preemptor.send(m.Ended(plan.plan_id, executed=False))
    assert actions(preemptor) == [("low", "evict")]


def test_capacity_freed_for_a_later_member_serves_an_earlier_one_too() -> None:
    preemptor = Preemptor("n", gpus=3)
    preemptor.run("cheap", "n", 0, ran_s=10)
    preemptor.run("dear", "n", 1, 2, ran_s=1_000)
    for number in range(2):
        preemptor.wait(f"high-{number}", **gang("h", 2))
    assert preemptor.victims() == [["dear"]]


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


def test_a_throttled_pod_is_no_cheaper_to_evict() -> None:
    """It has done as much work as before it was throttled."""
    preemptor = Preemptor("a", "b", gpus=1)
    suspension = encode_suspension(Suspension(action="throttle", plan_id="before", compute_milli=100))
    preemptor.run(
        "throttled",
        "a",
        0,
        memory_mib=8_192,
        compute_milli=1000,
        strategy="interposer",
        ran_s=1_000,
        annotations={"kerf.dev/suspended": suspension},
    )
    preemptor.run("young", "b", 0, ran_s=500)
    preemptor.wait("high")
    (plan,) = preemptor.plans()
    assert [(victim.name, victim.lost_gpu_seconds) for victim in plan.victims] == [("young", 501)]
