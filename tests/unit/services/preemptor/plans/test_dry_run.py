"""Answers of a dry run without a plan, and for gated pods."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from services.preemptor import ineligible_pods
from services.preemptor import messages as m
from shared.contracts.events import PreemptionProposed
from shared.contracts.facts import Put
from shared.contracts.preemption import Alternative, PreemptAnswer
from shared.model.affinity import LabelSelector
from shared.model.kube_object import Meta, OwnerReference
from shared.model.objects import DisruptionBudgetSpec, DisruptionBudgetStatus, PodDisruptionBudget, SchedulingGate
from tests.support import build
from tests.support.harness.preemptor import Preemptor


def asked(preemptor: Preemptor, name: str = "high") -> PreemptAnswer:
    return preemptor.core.dry_run("team", name, preemptor.now)


def budget(preemptor: Preemptor, label: str) -> None:
    """Adds a budget that allows no eviction."""
    meta = Meta(name=label, namespace="team", uid=f"uid-{label}", resource_version=build.next_version())
    spec = DisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": label}))
    preemptor.send(
        m.FactsSeen(
            (
                Put(
                    object=PodDisruptionBudget(
                        metadata=meta, spec=spec, status=DisruptionBudgetStatus(disruptions_allowed=0)
                    )
                ),
            )
        )
    )


def test_ineligible_pods_are_counted_by_reason() -> None:
    preemptor = Preemptor("n", "other", gpus=6)
    budget(preemptor, "kept")
    for gpu in range(2):
        preemptor.run(f"equal-{gpu}", "n", gpu, priority=100)
    preemptor.run("young", "n", 2, annotations={"kerf.dev/min-runtime": "1h"})
    for gpu in range(3, 6):
        preemptor.run(f"kept-{gpu}", "n", gpu, labels={"app": "kept"})
    preemptor.wait("high", node_selector={"kubernetes.io/hostname": "n"})
    answer = asked(preemptor)
    assert answer.plan is None
    assert answer.kept == ("3 pods: disruption budget", "2 pods: of no lower priority", "1 pod: minimum run time")


def test_pods_that_are_never_preempted_are_counted_as_such() -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.run("fixed", "n", 0, annotations={"kerf.dev/preemptible": "false"})
    preemptor.wait("high")
    assert asked(preemptor).kept == ("1 pod: marked kerf.dev/preemptible: false",)


def test_eligible_pods_that_free_too_little_are_counted_too() -> None:
    preemptor = Preemptor("n", gpus=2)
    preemptor.run("low", "n", 0)
    preemptor.run("equal", "n", 1, priority=100)
    preemptor.wait("high", gpus=2)
    assert sorted(asked(preemptor).kept) == [
        "1 pod: eligible, but preempting them does not free enough",
        "1 pod: of no lower priority",
    ]


def test_protected_replacements_and_spent_hourly_budgets_are_named() -> None:
    owner = (OwnerReference(uid="set", kind="ReplicaSet", name="web", controller=True),)
    preemptor = Preemptor("n", gpus=1, evictions_per_hour=1)
    preemptor.run("first", "n", 0, owners=owner)
    preemptor.wait("high")
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    preemptor.evicted(plan)
    preemptor.gone("first")
    preemptor.send(m.Ended(plan.plan_id, executed=True))
    preemptor.send(m.FactsSeen(build.gone(preemptor.pods.pop("high"))))
    preemptor.run("alone", "n", 0)
    preemptor.wait("next")
    assert asked(preemptor, "next").kept == ("1 pod: not evicted: their namespace's hourly eviction budget is spent",)


def test_members_of_a_gang_with_ineligible_members_are_counted() -> None:
    preemptor = Preemptor("n", gpus=2)
    gang = {"kerf.dev/gang": "train", "kerf.dev/gang-size": "2"}
    preemptor.run("one", "n", 0, annotations=gang)
    preemptor.run("two", "n", 1, annotations=gang | {"kerf.dev/min-runtime": "1h"})
    preemptor.wait("high")
    assert sorted(asked(preemptor).kept) == [
        "1 pod: minimum run time",
        "1 pod: other members of their gang may not be preempted",
    ]


def test_queues_within_their_share_are_named() -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.send(m.FactsSeen((Put(object=build.queues("queues: [{name: a, guaranteed: {gpus: 1}}, {name: b}]")),)))
    preemptor.run("own", "n", 0, labels={"kerf.dev/queue": "a"})
    preemptor.wait("high", labels={"kerf.dev/queue": "b"})
    assert asked(preemptor).kept == ("1 pod: their queue is within its share",)


def test_pods_on_unsuitable_nodes_are_not_counted() -> None:
    preemptor = Preemptor("n", "other", gpus=1)
    preemptor.run("equal", "n", 0, priority=100)
    preemptor.run("elsewhere", "other", 0, priority=100)
    preemptor.wait("high", node_selector={"kubernetes.io/hostname": "n"})
    assert asked(preemptor).kept == ("1 pod: of no lower priority",)


def test_the_answer_says_when_not_all_pods_were_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ineligible_pods, "MAX_PODS", 1)
    preemptor = Preemptor("n", "other", gpus=1)
    for node in ("n", "other"):
        preemptor.run(f"equal-{node}", node, 0, priority=100)
    preemptor.wait("high")
    assert asked(preemptor).kept == ("1 pod: of no lower priority", "others: not counted, after 1 pods")


def test_a_gated_pod_is_answered_as_if_it_had_no_gates() -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.run("low", "n", 0)
    preemptor.wait("high", scheduling_gates=(SchedulingGate(name="team/quota"),))
    answer = asked(preemptor)
    assert answer.plan is not None
    assert [victim.name for victim in answer.plan.victims] == ["low"]
    assert answer.sentence == "without its scheduling gates (team/quota): 1 pod would be evicted and lose 0 GPU-seconds"
    assert preemptor.plans() == [], "no pod is preempted for it before they are"


def test_a_gated_gang_is_answered_as_a_whole() -> None:
    preemptor = Preemptor("n", gpus=2)
    for gpu in range(2):
        preemptor.run(f"low-{gpu}", "n", gpu)
    notes = {"kerf.dev/gang": "train", "kerf.dev/gang-size": "2"}
    for number in range(2):
        preemptor.wait(f"g{number}", annotations=notes, scheduling_gates=(SchedulingGate(name="gate"),))
    answer = asked(preemptor, "g0")
    assert answer.plan is not None, answer.sentence
    assert (len(answer.plan.beneficiaries), len(answer.plan.victims)) == (2, 2)


def test_alternatives_are_named_with_their_price() -> None:
    """Prices are lower bounds if they were not computed in full; at most two alternatives."""
    preemptor = Preemptor("a", "b", "c", "d", gpus=1)
    for node, ran_s in (("a", 10), ("b", 1_000), ("c", 500), ("d", 2_000)):
        preemptor.run(f"on-{node}", node, 0, ran_s=ran_s)
    preemptor.wait("high")
    answer = asked(preemptor).alternatives
    assert answer == (
        Alternative(nodes=("c",), action="evict", victims=1, price_gpu_seconds=500, at_least=True),
        Alternative(nodes=("b",), action="evict", victims=1, price_gpu_seconds=1_000, at_least=True),
    )
    preemptor.now += 1
    (proposed,) = [command for command in preemptor.send(m.Tick()) if isinstance(command, m.Propose)]
    assert isinstance(proposed.event, PreemptionProposed)
    assert [other.nodes for other in proposed.event.alternatives] == [("c",), ("b",)]


def test_a_tried_node_that_costs_more_is_an_alternative_with_its_exact_price() -> None:
    """Two small pods on `a` look cheaper than the one on `b`, until both have to be evicted."""
    preemptor = Preemptor("a", "b", gpus=1)
    for number in range(2):
        preemptor.run(f"small-{number}", "a", 0, memory_mib=40_960, ran_s=1_000)
    preemptor.run("large", "b", 0, memory_mib=81_920, compute_milli=1000, ran_s=600)
    preemptor.wait("high", gpus=0, memory="80Gi")
    answer = asked(preemptor)
    assert answer.plan is not None
    assert [victim.name for victim in answer.plan.victims] == ["large"]
    assert answer.alternatives == (Alternative(nodes=("a",), action="evict", victims=2, price_gpu_seconds=1_000),)


def test_a_single_option_has_no_alternatives() -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.run("low", "n", 0)
    preemptor.wait("high")
    assert asked(preemptor).alternatives == ()


def manifest(priority: int = 1000, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"kerf.dev/gpu": "1"}}}
    return {
        "kind": "Pod",
        "metadata": {"name": "dream", "namespace": "team"},
        "spec": {"schedulerName": "kerf", "priority": priority, "containers": [container]} | spec,
    }


def test_a_pod_that_does_not_exist_is_asked_about_by_its_manifest() -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.run("low", "n", 0, priority=0)
    preemptor.send(m.Tick())
    answer = preemptor.core.dry_run_of(manifest(), preemptor.now)
    assert answer.plan is not None
    assert [victim.name for victim in answer.plan.victims] == ["low"]
    assert [beneficiary.name for beneficiary in answer.plan.beneficiaries] == ["dream"]
    assert "what-if/dream" not in preemptor.core.book.pods
    later = [command for _ in range(30) for command in preemptor.plans(1.0)]
    assert later == [], "nothing is planned for it"


def test_a_manifest_is_planned_for_beside_a_pod_that_is_terminating() -> None:
    """What that returns is not enough by itself."""
    preemptor = Preemptor("n", gpus=2)
    preemptor.run("low", "n", 0, priority=0)
    ending = preemptor.run("ending", "n", 1, priority=0)
    ends = datetime.fromtimestamp(preemptor.now + 30, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    preemptor.send(m.FactsSeen((Put(object=build.newer(ending, deletion_timestamp=ends)),)))
    preemptor.send(m.Tick())
    both = {"name": "main", "resources": {"limits": {"kerf.dev/gpu": "2"}}}
    answer = preemptor.core.dry_run_of(manifest(containers=[both]), preemptor.now)
    assert (answer.plan, answer.error) == (None, "")
    one = preemptor.core.dry_run_of(manifest(), preemptor.now)
    assert one.sentence == "it fits without preemption; placement is about to place it"


def test_a_manifest_of_no_higher_priority_preempts_nothing() -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.run("low", "n", 0, priority=0)
    preemptor.send(m.Tick())
    answer = preemptor.core.dry_run_of(manifest(0), preemptor.now)
    assert (answer.plan, answer.kept) == (None, ("1 pod: of no lower priority",))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (5, "that is no pod manifest"),
        (manifest(containers=[]), "has no containers"),
        (manifest(schedulerName="default-scheduler"), "its schedulerName is default-scheduler"),
        (manifest(0, priorityClassName="urgent"), "what priority the class urgent stands for"),
    ],
)
def test_a_manifest_that_cannot_be_asked_about_is_an_error_that_says_why(given: Any, error: str) -> None:
    answer = Preemptor("n", gpus=1).core.dry_run_of(given, 0.0)
    assert error in answer.error
    assert (answer.plan, answer.sentence) == (None, "")


def test_asked_about_a_launcher_the_plan_is_that_of_its_gang() -> None:
    """It needs no GPU, and pods are preempted for the others."""
    preemptor = Preemptor("n", gpus=1)
    preemptor.run("low", "n", 0)
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    preemptor.send(m.FactsSeen((Put(object=build.pod("launcher", priority=100, annotations=notes)),)))
    preemptor.wait("high", annotations=notes)
    plan = asked(preemptor, "launcher").plan
    assert plan is not None
    assert [victim.name for victim in plan.victims] == ["low"]
    assert sorted(one.name for one in plan.beneficiaries) == ["high", "launcher"]
