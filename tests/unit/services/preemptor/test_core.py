"""The life of a plan: proposed, reserved, executed or cancelled.

And what requires placement's reservation.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from services.preemptor import messages as m
from services.preemptor.plans.execution import ASK_AGAIN_S
from shared.contracts.commands import Answer, Outcome
from shared.contracts.events import PreemptionProposed
from shared.contracts.facts import Gone, Put
from shared.contracts.preemption import Plan, Reserved
from shared.contracts.samples import GpuUse, SliceUse, UsageSample
from shared.model.affinity import LabelSelector
from shared.model.kube_object import Meta, OwnerReference
from shared.model.objects import (
    Condition,
    DisruptionBudgetSpec,
    DisruptionBudgetStatus,
    Pod,
    PodDisruptionBudget,
    PodStatus,
)
from tests.support import build
from tests.support.harness.preemptor import Preemptor


def test_no_pod_is_preempted_before_the_patience_time_is_over(preemptor: Preemptor) -> None:
    assert preemptor.plans(after_s=0.1) == []
    assert len(preemptor.plans(after_s=0.2)) == 1


def test_no_eviction_is_requested_before_placement_has_reserved(preemptor: Preemptor) -> None:
    preemptor.now += 1
    (proposed,) = preemptor.send(m.Tick())
    assert isinstance(proposed, m.Propose)
    assert isinstance(proposed.event, PreemptionProposed)
    assert proposed.event.plan == proposed.plan
    assert proposed.plan.price_gpu_seconds == 11
    for _ in range(50):
        assert preemptor.plans() == []
    assert preemptor.reserve(proposed.plan) == ["cheap"]


def test_the_eviction_reason_names_the_preempting_pod(preemptor: Preemptor) -> None:
    (plan,) = preemptor.plans()
    preemptor.now += 1
    (*_, execute) = preemptor.send(m.Answered(Reserved(plan_id=plan.plan_id, ok=True)))
    assert isinstance(execute, m.Execute)
    assert (
        execute.evictions[0].reason == f"preempted by team/high, which has a higher priority (plan {plan.plan_id}); "
        "it has no controller that replaces it"
    )


def test_the_eviction_reason_of_a_reclaimed_pod_names_queue_and_replacement() -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.send(m.FactsSeen((Put(object=build.queues("queues: [{name: a}, {name: b, guaranteed: {gpus: 1}}]")),)))
    preemptor.run(
        "lent",
        "n",
        0,
        labels={"kerf.dev/queue": "a"},
        owners=(OwnerReference(uid="o", kind="Job", name="train", controller=True),),
    )
    preemptor.wait("due", priority=0, labels={"kerf.dev/queue": "b"})
    (plan,) = preemptor.plans()
    (*_, execute) = preemptor.send(m.Answered(Reserved(plan_id=plan.plan_id, ok=True)))
    assert isinstance(execute, m.Execute)
    assert execute.evictions[0].reason == (
        f"preempted by team/due, whose queue reclaims its share (plan {plan.plan_id}); "
        "its Job replaces it, and the replacement is placed when it fits (kerf when)"
    )


@pytest.mark.parametrize(
    ("annotation", "value"),
    [("min-runtime", "bogus"), ("expected-duration", "1 day"), ("turns", "off"), ("isolation", "")],
)
def test_an_annotation_that_cannot_be_read_protects_no_running_pod(annotation: str, value: str) -> None:
    """Users can write some of them on a pod that is bound, and an eviction needs none."""
    notes = {f"kerf.dev/{annotation}": value}
    by_priority = Preemptor("n", gpus=1)
    by_priority.run("low", "n", 0, annotations=notes)
    by_priority.wait("high")
    assert by_priority.victims() == [["low"]]
    by_queue = Preemptor("n", gpus=1)
    by_queue.send(m.FactsSeen((Put(object=build.queues("queues: [{name: a}, {name: b, guaranteed: {gpus: 1}}]")),)))
    by_queue.run("lent", "n", 0, labels={"kerf.dev/queue": "a"}, annotations=notes)
    by_queue.wait("due", priority=0, labels={"kerf.dev/queue": "b"})
    assert by_queue.victims() == [["lent"]]


@pytest.mark.parametrize(("annotation", "value"), [("min-runtime", "bogus"), ("isolation", "")])
def test_a_pod_that_is_not_preemptible_stays_so_when_it_cannot_be_read(annotation: str, value: str) -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.run("low", "n", 0, annotations={"kerf.dev/preemptible": "false", f"kerf.dev/{annotation}": value})
    preemptor.wait("high")
    assert preemptor.victims() == []


def test_another_node_is_tried_when_placement_refuses(preemptor: Preemptor) -> None:
    (plan,) = preemptor.plans()
    assert preemptor.reserve(plan, ok=False, reason="the beneficiaries would not fit even then") == []
    assert preemptor.victims() == [["dear"]]


def test_an_eviction_denied_by_a_budget_cancels_the_plan_and_another_is_made(preemptor: Preemptor) -> None:
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    uid = preemptor.pods["cheap"].metadata.uid
    (gives_up,) = preemptor.send(
        m.Evicted(
            plan.plan_id,
            (uid,),
            (
                Answer(
                    uid=uid,
                    outcome="throttled",
                    message="Cannot evict pod as it would violate the pod's disruption budget.",
                ),
            ),
        )
    )
    assert isinstance(gives_up, m.CancelPlan)
    assert "disruption budget" in gives_up.reason
    assert preemptor.victims() == [["dear"]]


def under_budgets() -> tuple[Preemptor, Plan]:
    """Returns a plan of four victims: `two` under a budget of two pods, `three` under one of a single pod."""
    preemptor = Preemptor("n", gpus=4)
    for name, allowed in (("loose", 2), ("tight", 1)):
        meta = Meta(name=name, namespace="team", uid=f"uid-{name}", resource_version=build.next_version())
        spec = DisruptionBudgetSpec(selector=LabelSelector(match_labels={"budget": name}))
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
    for gpu, (name, label) in enumerate({"one": "", "two": "loose", "three": "tight", "four": ""}.items()):
        preemptor.run(name, "n", gpu, labels={"budget": label})
    preemptor.wait("high", gpus=4)
    (plan,) = preemptor.plans()
    return preemptor, plan


def test_victims_under_a_budget_are_evicted_first_the_tightest_first() -> None:
    preemptor, plan = under_budgets()
    assert preemptor.reserve(plan) == ["three"]
    assert preemptor.evicted(plan, "three") == ["two"]
    assert sorted(preemptor.evicted(plan, "two")) == ["four", "one"]
    assert preemptor.evicted(plan, "one", "four") == []


def test_a_shrunken_budget_costs_no_victim_without_a_budget() -> None:
    preemptor, plan = under_budgets()
    assert preemptor.reserve(plan) == ["three"]
    uid = preemptor.pods["three"].metadata.uid
    commands = preemptor.send(m.Evicted(plan.plan_id, (uid,), (Answer(uid=uid, outcome="throttled"),)))
    assert [type(command) for command in commands] == [m.CancelPlan]


def test_a_repeated_or_lost_answer_starts_no_eviction_early() -> None:
    preemptor, plan = under_budgets()
    preemptor.reserve(plan)
    assert preemptor.evicted(plan, "three", three="unknown") == []
    preemptor.now += 6
    assert [e.name for c in preemptor.send(m.Tick()) if isinstance(c, m.Execute) for e in c.evictions] == ["three"]
    assert preemptor.evicted(plan, "three") == ["two"]
    assert preemptor.evicted(plan, "three") == []
    assert len(preemptor.evicted(plan, "two")) == 2


def test_victims_without_budgets_are_evicted_at_once() -> None:
    preemptor = Preemptor("n", gpus=2)
    for gpu in range(2):
        preemptor.run(f"low-{gpu}", "n", gpu)
    preemptor.wait("high", gpus=2)
    (plan,) = preemptor.plans()
    assert sorted(preemptor.reserve(plan)) == ["low-0", "low-1"]


@pytest.mark.parametrize("outcome", ["unknown", "throttled"])
def test_an_unanswered_eviction_is_requested_again(preemptor: Preemptor, outcome: Outcome) -> None:
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    uid = preemptor.pods["cheap"].metadata.uid
    commands = preemptor.send(m.Evicted(plan.plan_id, (uid,), (Answer(uid=uid, outcome=outcome),)))
    preemptor.now += 6
    again = [e.name for c in preemptor.send(m.Tick()) if isinstance(c, m.Execute) for e in c.evictions]
    assert (again == ["cheap"]) == (outcome == "unknown")
    assert (commands == []) == (outcome == "unknown")


def test_a_plan_that_is_executed_is_over(preemptor: Preemptor) -> None:
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    preemptor.evicted(plan)
    preemptor.send(m.Ended(plan.plan_id, executed=True))
    assert preemptor.core.executions == {}


def test_a_plan_cancelled_by_placement_is_made_again(preemptor: Preemptor) -> None:
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    preemptor.send(m.Ended(plan.plan_id, executed=False))
    assert len(preemptor.plans()) == 1


def test_pods_rejected_before_the_start_are_found_by_their_condition() -> None:
    preemptor = Preemptor("n", gpus=1)
    low = preemptor.run("low", "n", 0)
    status = PodStatus(
        phase="Pending", conditions=(Condition(type="PodScheduled", status="False", reason="Unschedulable"),)
    )
    high = build.gpu_pod("high", gpus=1, priority=100)
    preemptor.send(
        m.SnapshotSeen(
            tuple(Put(object=o) for o in (build.node("n"), low, msgspec.structs.replace(high, status=status)))
        )
    )
    assert preemptor.victims() == [["low"]]


def test_a_namespace_loses_no_more_pods_than_its_hourly_budget() -> None:
    preemptor = Preemptor("a", "b", gpus=1, evictions_per_hour=1)
    preemptor.run("one", "a", 0)
    preemptor.run("two", "b", 0)
    preemptor.wait("first")
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    preemptor.evicted(plan)
    preemptor.send(m.Ended(plan.plan_id, executed=True))
    preemptor.gone("first")
    preemptor.wait("second")
    assert preemptor.victims() == []
    preemptor.now += 3_601
    assert len(preemptor.victims()) == 1


def test_a_dry_run_names_victims_and_price_and_changes_nothing(preemptor: Preemptor) -> None:
    answer = preemptor.core.dry_run("team", "high", preemptor.now)
    assert answer.plan is not None
    assert [victim.name for victim in answer.plan.victims] == ["cheap"]
    assert answer.sentence == "1 pod would be evicted and lose 10 GPU-seconds"
    assert preemptor.core.executions == {}
    assert preemptor.core.dry_run("team", "nobody", preemptor.now).error
    assert preemptor.core.dry_run("team", "cheap", preemptor.now).sentence == "it is not pending"
    (plan,) = preemptor.plans()
    assert "in progress" in preemptor.core.dry_run("team", "high", preemptor.now).sentence
    assert preemptor.core.dry_run("team", "high", preemptor.now).plan == plan


def test_a_plan_reserved_for_an_earlier_instance_is_executed(preemptor: Preemptor) -> None:
    """Another instance, or an earlier process of this one, requested it and is gone."""
    (plan,) = preemptor.plans()
    before = msgspec.structs.replace(plan, plan_id="of-another")
    commands = preemptor.send(
        m.Answered(Reserved(plan_id=plan.plan_id, ok=False, reason="another plan is in progress", under_way=before))
    )
    assert [(c.plan_id, [e.name for e in c.evictions]) for c in commands if isinstance(c, m.Execute)] == [
        ("of-another", ["cheap"])
    ]
    assert preemptor.plans() == []


def test_a_plan_without_events_is_over_some_time_after_its_deadline(preemptor: Preemptor) -> None:
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    preemptor.evicted(plan)
    assert preemptor.plans(after_s=plan.deadline_s) == []
    assert preemptor.plans(after_s=60) == []  # it waits its patience first
    assert len(preemptor.plans()) == 1


def test_freed_capacity_belongs_to_its_plan_until_the_bindings_are_seen() -> None:
    preemptor = Preemptor("a", gpus=1)
    preemptor.run("low", "a", 0)
    preemptor.wait("high")
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    preemptor.gone("low")
    preemptor.send(m.Ended(plan.plan_id, executed=True))
    preemptor.wait("later")
    assert preemptor.plans() == []
    assert preemptor.core.pending[preemptor.pods["later"].metadata.uid].not_before > preemptor.now


def test_a_replacement_is_protected_even_if_the_victim_is_gone_before_the_answer() -> None:
    preemptor = Preemptor("a", gpus=1)
    victim = preemptor.run("low", "a", 0)
    preemptor.wait("high")
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    preemptor.gone("low")
    preemptor.evicted(plan)
    again = preemptor.run("low", "a", 0)
    assert again.metadata.uid == victim.metadata.uid
    assert preemptor.core.protection.is_exempt(preemptor.core.book.pods[again.metadata.uid], preemptor.now)


def test_one_rejection_counts_for_the_whole_gang() -> None:
    preemptor = Preemptor("a", gpus=2)
    for number in range(2):
        preemptor.run(f"low-{number}", "a", number)
    mates = [
        build.gpu_pod(f"g-{n}", gpus=1, priority=100, annotations={"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"})
        for n in range(2)
    ]
    preemptor.send(m.FactsSeen(tuple(Put(object=mate) for mate in mates)))
    preemptor.send(m.Rejected(mates[1].metadata.uid))
    assert preemptor.victims() == [["low-0", "low-1"]]


def test_a_standby_instance_proposes_nothing(preemptor: Preemptor) -> None:
    preemptor.now += 1
    assert preemptor.send(m.Tick(proposes=False)) == []
    assert len(preemptor.plans()) == 1


def test_an_obsolete_plan_does_not_count_as_failed_suspension() -> None:
    """Otherwise the next plan would evict pods that could have been paused."""
    preemptor = Preemptor("n", gpus=1)
    preemptor.run("low", "n", 0, memory_mib=40_960, compute_milli=1000, strategy="interposer")
    for name in ("high", "next"):
        preemptor.wait(name, gpus=0, memory="40960Mi", compute=50)
        (plan,) = preemptor.plans()
        assert [victim.action for victim in plan.victims] == ["throttle"]
        preemptor.reserve(plan)
        preemptor.send(m.FactsSeen((Gone(object=preemptor.pods.pop(name)),)))
        preemptor.send(m.Ended(plan.plan_id, executed=False))


@pytest.mark.parametrize("heard", ["unknown", "too late", "by a snapshot"])
def test_a_replacement_is_protected_though_the_eviction_answer_is_lost(heard: str) -> None:
    """The controller's next pod may appear before the answer."""
    preemptor = Preemptor("n", gpus=1)
    owners = (OwnerReference(uid="o", kind="ReplicaSet", name="r", controller=True),)
    preemptor.run("low", "n", 0, owners=owners)
    preemptor.wait("high")
    (plan,) = preemptor.plans()
    assert preemptor.reserve(plan) == ["low"]
    if heard == "unknown":
        preemptor.evicted(plan, low="unknown")
    if heard == "by a snapshot":
        preemptor.pods.pop("low")
        preemptor.send(m.SnapshotSeen(build.put(build.node("n"), *preemptor.pods.values())))
        preemptor.send(m.GrantOver("grant-low"))
    else:
        preemptor.gone("low")
    preemptor.send(m.Ended(plan.plan_id, executed=False))
    preemptor.send(m.FactsSeen((Gone(object=preemptor.pods.pop("high")),)))
    preemptor.run("low", "n", 0, owners=owners, uid="its-next")
    preemptor.wait("another")
    assert preemptor.plans() == []


def test_free_capacity_that_placement_does_not_use_counts_only_for_a_while() -> None:
    """The planner does not know a pod's affinity to other pods, or volumes.

    Placement may refuse an empty node.
    """
    preemptor = Preemptor("a", "b", gpus=1)
    preemptor.run("low", "b", 0)
    preemptor.wait("high")
    for _ in range(9):
        assert preemptor.plans() == []
    found = [[victim.name for victim in plan.victims] for _ in range(5) for plan in preemptor.plans()]
    assert found == [["low"]]


def test_capacity_that_has_just_become_free_is_left_to_placement() -> None:
    """This holds however long the capacity was expected before."""
    preemptor = Preemptor("a", "b", gpus=1)
    preemptor.run("low", "b", 0)
    ending = preemptor.run("ends", "a", 0)
    preemptor.wait("high")
    preemptor.send(m.FactsSeen((Gone(object=ending),)))
    for _ in range(20):
        assert preemptor.plans() == []
    preemptor.send(m.GrantOver("grant-ends"))
    for _ in range(9):
        assert preemptor.plans() == []


def test_a_pod_that_had_finished_before_the_preemptor_began_holds_no_gpu() -> None:
    """Its object stays, and nothing says again that its node has released the grant. Otherwise two pods would be
    preempted where one is enough, which placement refuses for ever."""
    before = Preemptor("n", gpus=2)
    runs = before.run("runs", "n", 0)
    ended = build.newer(before.run("ended", "n", 1), phase="Succeeded")
    began = Preemptor("n", gpus=2)
    began.send(m.SnapshotSeen(build.put(build.node("n"), runs, ended)))
    assert sorted(began.core.book.grants) == ["grant-runs"]
    began.send(m.FactsSeen(build.put(build.newer(runs, phase="Succeeded"))))
    assert sorted(began.core.book.grants) == ["grant-runs"], "one that ends now holds it until its node has said so"
    began.send(m.GrantOver("grant-runs"))
    assert not began.core.book.grants


def _terminating(preemptor: Preemptor, name: str) -> Pod:
    """The pod is seen to end: its eviction was accepted."""
    ends = datetime.fromtimestamp(preemptor.now + 600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    pod = preemptor.pods[name] = build.newer(preemptor.pods[name], deletion_timestamp=ends)
    preemptor.send(m.FactsSeen((Put(object=pod),)))
    return pod


def _evictions_left(preemptor: Preemptor) -> int | None:
    return preemptor.core.protection.evictions_left("team", preemptor.now)


def test_an_eviction_that_is_requested_again_counts_once() -> None:
    """The answer was lost, and the pod is seen to end before the next one."""
    preemptor = Preemptor("n", gpus=1, evictions_per_hour=2)
    preemptor.run("low", "n", 0)
    preemptor.wait("high")
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    preemptor.evicted(plan, low="unknown")
    _terminating(preemptor, "low")
    assert _evictions_left(preemptor) == 1
    preemptor.now += ASK_AGAIN_S
    assert any(isinstance(command, m.Execute) for command in preemptor.send(m.Tick()))
    preemptor.evicted(plan)
    assert _evictions_left(preemptor) == 1


def test_an_eviction_of_a_plan_that_another_instance_goes_on_with_counts_once() -> None:
    preemptor = Preemptor("n", gpus=1, evictions_per_hour=2)
    preemptor.run("low", "n", 0)
    high = preemptor.wait("high")
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    uid = plan.victims[0].uid
    (saved,) = [
        c.record for c in preemptor.send(m.Evicted(plan.plan_id, (uid,), ())) if isinstance(c, m.SaveProtection)
    ]
    low = _terminating(preemptor, "low")
    preemptor.restart()
    preemptor.send(m.ProtectionRestored(saved))
    preemptor.send(m.InventorySeen(build.inventory("n", gpus=1)))
    preemptor.send(m.SnapshotSeen(build.put(build.node("n"), low, high)))
    assert _evictions_left(preemptor) == 1
    preemptor.core.executions.begin(msgspec.structs.replace(plan, plan_id="its-own"), preemptor.now)
    preemptor.send(m.Answered(Reserved(plan_id="its-own", ok=False, reason="in progress", under_way=plan)))
    preemptor.evicted(plan)
    assert _evictions_left(preemptor) == 1


def _reclaims_after(
    ran_s: int, waited_s: float, created_ahead_s: float = 0.0, *, restarts: bool = True, again: bool = False
) -> float:
    """How long a pod of a queue that is due its share waits until its plan, before and after a restart. `again`: it is
    rejected once more before the snapshot."""
    preemptor = Preemptor("n", gpus=2)
    policy = build.queues("queues: [{name: a}, {name: b}]")
    preemptor.send(m.FactsSeen((Put(object=policy),)))
    lent = [preemptor.run(f"lent-{i}", "n", i, labels={"kerf.dev/queue": "a"}, ran_s=ran_s) for i in range(2)]
    created = datetime.fromtimestamp(preemptor.now + created_ahead_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    due = preemptor.wait("due", priority=0, labels={"kerf.dev/queue": "b"}, created=created)
    began = preemptor.now
    assert preemptor.plans(waited_s) == []
    if restarts:
        preemptor.restart()
        preemptor.send(m.InventorySeen(build.inventory("n", gpus=2)))
        status = PodStatus(
            phase="Pending", conditions=(Condition(type="PodScheduled", status="False", reason="Unschedulable"),)
        )
        due = msgspec.structs.replace(due, status=status)
        if again:
            preemptor.send(m.Rejected(due.metadata.uid))
        preemptor.send(m.SnapshotSeen(build.put(build.node("n"), policy, *lent, due)))
    while not preemptor.plans(10.0):
        assert preemptor.now - began < 20 * ran_s
    return preemptor.now - began


@pytest.mark.parametrize("again", [False, True])
def test_the_wait_for_a_fair_share_does_not_begin_anew_with_each_process(again: bool) -> None:
    assert _reclaims_after(3_000, 2_900, again=again) == pytest.approx(
        _reclaims_after(3_000, 2_900, restarts=False), abs=20
    )


def test_a_pod_created_by_a_clock_that_is_ahead_waits_from_the_start_on() -> None:
    assert _reclaims_after(300, 100, created_ahead_s=86_400) == pytest.approx(100 + 400, abs=30)


def test_a_restarted_preemptor_waits_for_pods_that_end_before_it_preempts_others() -> None:
    """However long the pod has waited: they may have been evicted for it."""
    preemptor = Preemptor("n", "other", gpus=2)
    running = [preemptor.run("low", "n", 0), *(preemptor.run(f"dear-{i}", "other", i, ran_s=9_000) for i in range(2))]
    preemptor.run("ending", "n", 1)
    ending = _terminating(preemptor, "ending")
    created = datetime.fromtimestamp(preemptor.now - 3_600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = PodStatus(
        phase="Pending", conditions=(Condition(type="PodScheduled", status="False", reason="Unschedulable"),)
    )
    high = msgspec.structs.replace(build.gpu_pod("high", gpus=2, priority=100, created=created), status=status)
    preemptor.send(m.SnapshotSeen(build.put(build.node("n"), build.node("other"), *running, ending, high)))
    assert preemptor.plans(preemptor.config.leaving_s / 2) == []
    preemptor.gone("ending")
    assert [names for _ in range(40) for names in preemptor.victims()] == [["low"]]


def test_a_sample_of_a_slice_that_its_node_does_not_have_is_not_taken(preemptor: Preemptor) -> None:
    use = SliceUse(
        uid=next(iter(preemptor.core.book.pods)), namespace="team", name="p", memory_mib=1, granted_memory_mib=1,
        granted_compute_milli=1, counted_mib=1,
    )  # fmt: skip
    sample = UsageSample(node="evil", at_ms=1, gpus=(GpuUse(uuid="evil-gpu-0", used_mib=1, slices=(use,)),))
    preemptor.send(m.Sampled(sample))
    assert preemptor.core._memory_use._of == {}
