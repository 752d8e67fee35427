"""The life of a plan: proposed, reserved, executed or cancelled.

And what requires placement's reservation.
"""

from __future__ import annotations

import msgspec
import pytest

from services.preemptor import core
from services.preemptor import messages as m
from services.preemptor.planning import victims
from shared.book import disruption_cost
from shared.book.book import Book
from shared.book.disruption_cost import DisruptionCost
from shared.book.states import PodState
from shared.contracts.commands import Answer, Outcome
from shared.contracts.events import PreemptionProposed
from shared.contracts.facts import Gone, Put
from shared.contracts.preemption import Plan, Reserved
from shared.model.affinity import LabelSelector
from shared.model.kube_object import Meta, OwnerReference
from shared.model.objects import Condition, DisruptionBudgetSpec, DisruptionBudgetStatus, PodDisruptionBudget, PodStatus
from tests.support import build
from tests.unit.services.preemptor.world import Cluster


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster("a", "b", gpus=1)
    made.run("cheap", "a", 0, ran_s=10)
    made.run("dear", "b", 0, ran_s=1_000)
    made.wait("high")
    return made


def test_no_pod_is_preempted_before_the_patience_time_is_over(cluster: Cluster) -> None:
    assert cluster.plans(after_s=0.1) == []
    assert len(cluster.plans(after_s=0.2)) == 1


def test_no_eviction_is_requested_before_placement_has_reserved(cluster: Cluster) -> None:
    cluster.now += 1
    (proposed,) = cluster.say(m.Tick())
    assert isinstance(proposed, m.Propose)
    assert isinstance(proposed.event, PreemptionProposed)
    assert proposed.event.plan == proposed.plan
    assert proposed.plan.price_gpu_seconds == 11
    for _ in range(50):
        assert cluster.plans() == []
    assert cluster.reserve(proposed.plan) == ["cheap"]


def test_the_eviction_reason_names_the_preempting_pod(cluster: Cluster) -> None:
    (plan,) = cluster.plans()
    cluster.now += 1
    (*_, execute) = cluster.say(m.Answered(Reserved(plan_id=plan.plan_id, ok=True)))
    assert isinstance(execute, m.Execute)
    assert (
        execute.evictions[0].reason == f"preempted by team/high, which has a higher priority (plan {plan.plan_id}); "
        "it has no controller that replaces it"
    )


def test_the_eviction_reason_of_a_reclaimed_pod_names_queue_and_replacement() -> None:
    cluster = Cluster("n", gpus=1)
    cluster.say(m.FactsSeen((Put(object=build.queues("queues: [{name: a}, {name: b, guaranteed: {gpus: 1}}]")),)))
    cluster.run(
        "lent",
        "n",
        0,
        labels={"kerf.dev/queue": "a"},
        owners=(OwnerReference(uid="o", kind="Job", name="train", controller=True),),
    )
    cluster.wait("due", priority=0, labels={"kerf.dev/queue": "b"})
    (plan,) = cluster.plans()
    (*_, execute) = cluster.say(m.Answered(Reserved(plan_id=plan.plan_id, ok=True)))
    assert isinstance(execute, m.Execute)
    assert execute.evictions[0].reason == (
        f"preempted by team/due, whose queue reclaims its share (plan {plan.plan_id}); "
        "its Job replaces it, and the replacement is placed when it fits (kerf when)"
    )


def test_another_node_is_tried_when_placement_refuses(cluster: Cluster) -> None:
    (plan,) = cluster.plans()
    assert cluster.reserve(plan, ok=False, reason="the beneficiaries would not fit even then") == []
    assert cluster.victims() == [["dear"]]


def test_an_eviction_denied_by_a_budget_cancels_the_plan_and_another_is_made(cluster: Cluster) -> None:
    (plan,) = cluster.plans()
    cluster.reserve(plan)
    uid = cluster.pods["cheap"].metadata.uid
    (gives_up,) = cluster.say(
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
    assert cluster.victims() == [["dear"]]


def under_budgets() -> tuple[Cluster, Plan]:
    """Returns a plan of four victims: `two` under a budget of two pods, `three` under one of a single pod."""
    cluster = Cluster("n", gpus=4)
    for name, allowed in (("loose", 2), ("tight", 1)):
        meta = Meta(name=name, namespace="team", uid=f"uid-{name}", resource_version=build.next_version())
        spec = DisruptionBudgetSpec(selector=LabelSelector(match_labels={"budget": name}))
        cluster.say(
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
        cluster.run(name, "n", gpu, labels={"budget": label})
    cluster.wait("high", gpus=4)
    (plan,) = cluster.plans()
    return cluster, plan


def test_victims_under_a_budget_are_evicted_first_the_tightest_first() -> None:
    cluster, plan = under_budgets()
    assert cluster.reserve(plan) == ["three"]
    assert cluster.evicted(plan, "three") == ["two"]
    assert sorted(cluster.evicted(plan, "two")) == ["four", "one"]
    assert cluster.evicted(plan, "one", "four") == []


def test_a_shrunken_budget_costs_no_victim_without_a_budget() -> None:
    cluster, plan = under_budgets()
    assert cluster.reserve(plan) == ["three"]
    uid = cluster.pods["three"].metadata.uid
    said = cluster.say(m.Evicted(plan.plan_id, (uid,), (Answer(uid=uid, outcome="throttled"),)))
    assert [type(command) for command in said] == [m.CancelPlan]


def test_a_repeated_or_lost_answer_starts_no_eviction_early() -> None:
    cluster, plan = under_budgets()
    cluster.reserve(plan)
    assert cluster.evicted(plan, "three", three="unknown") == []
    cluster.now += 6
    assert [e.name for c in cluster.say(m.Tick()) if isinstance(c, m.Execute) for e in c.evictions] == ["three"]
    assert cluster.evicted(plan, "three") == ["two"]
    assert cluster.evicted(plan, "three") == []
    assert len(cluster.evicted(plan, "two")) == 2


def test_victims_without_budgets_are_evicted_at_once() -> None:
    cluster = Cluster("n", gpus=2)
    for gpu in range(2):
        cluster.run(f"low-{gpu}", "n", gpu)
    cluster.wait("high", gpus=2)
    (plan,) = cluster.plans()
    assert sorted(cluster.reserve(plan)) == ["low-0", "low-1"]


@pytest.mark.parametrize("outcome", ["unknown", "throttled"])
def test_an_unanswered_eviction_is_requested_again(cluster: Cluster, outcome: Outcome) -> None:
    (plan,) = cluster.plans()
    cluster.reserve(plan)
    uid = cluster.pods["cheap"].metadata.uid
    said = cluster.say(m.Evicted(plan.plan_id, (uid,), (Answer(uid=uid, outcome=outcome),)))
    cluster.now += 6
    again = [e.name for c in cluster.say(m.Tick()) if isinstance(c, m.Execute) for e in c.evictions]
    assert (again == ["cheap"]) == (outcome == "unknown")
    assert (said == []) == (outcome == "unknown")


def test_a_plan_that_is_executed_is_over(cluster: Cluster) -> None:
    (plan,) = cluster.plans()
    cluster.reserve(plan)
    cluster.evicted(plan)
    cluster.say(m.Ended(plan.plan_id, executed=True))
    assert cluster.core.executions == {}


def test_a_plan_cancelled_by_placement_is_made_again(cluster: Cluster) -> None:
    (plan,) = cluster.plans()
    cluster.reserve(plan)
    cluster.say(m.Ended(plan.plan_id, executed=False))
    assert len(cluster.plans()) == 1


def test_a_lost_answer_to_a_reservation_blocks_no_pod_forever(cluster: Cluster) -> None:
    """The plan counts as not reserved. If it was, no instance executes it, and its deadline releases it."""
    (plan,) = cluster.plans()
    cluster.reserve(plan, ok=False, reason="")
    assert cluster.victims() == [["cheap"]]


def test_pods_rejected_before_the_start_are_found_by_their_condition() -> None:
    cluster = Cluster("n", gpus=1)
    low = cluster.run("low", "n", 0)
    told = PodStatus(
        phase="Pending", conditions=(Condition(type="PodScheduled", status="False", reason="Unschedulable"),)
    )
    high = build.gpu_pod("high", gpus=1, priority=100)
    cluster.say(
        m.SnapshotSeen(tuple(Put(object=o) for o in (build.node("n"), low, msgspec.structs.replace(high, status=told))))
    )
    assert cluster.victims() == [["low"]]


def test_a_namespace_loses_no_more_pods_than_its_hourly_budget() -> None:
    cluster = Cluster("a", "b", gpus=1, evictions_per_hour=1)
    cluster.run("one", "a", 0)
    cluster.run("two", "b", 0)
    cluster.wait("first")
    (plan,) = cluster.plans()
    cluster.reserve(plan)
    cluster.evicted(plan)
    cluster.say(m.Ended(plan.plan_id, executed=True))
    cluster.gone("first")
    cluster.wait("second")
    assert cluster.victims() == []
    cluster.now += 3_601
    assert len(cluster.victims()) == 1


def test_a_dry_run_names_victims_and_price_and_changes_nothing(cluster: Cluster) -> None:
    answer = cluster.core.dry_run("team", "high", cluster.now)
    assert answer.plan is not None
    assert [victim.name for victim in answer.plan.victims] == ["cheap"]
    assert answer.sentence == "1 pod would be evicted and lose 10 GPU-seconds"
    assert cluster.core.executions == {}
    assert cluster.core.dry_run("team", "nobody", cluster.now).error
    assert cluster.core.dry_run("team", "cheap", cluster.now).sentence == "it is not pending"
    (plan,) = cluster.plans()
    assert "in progress" in cluster.core.dry_run("team", "high", cluster.now).sentence
    assert cluster.core.dry_run("team", "high", cluster.now).plan == plan


def test_a_plan_reserved_for_an_earlier_instance_is_executed(cluster: Cluster) -> None:
    """Another instance, or an earlier process of this one, requested it and is gone."""
    (plan,) = cluster.plans()
    before = msgspec.structs.replace(plan, plan_id="of-another")
    said = cluster.say(
        m.Answered(Reserved(plan_id=plan.plan_id, ok=False, reason="another plan is in progress", under_way=before))
    )
    assert [(c.plan_id, [e.name for e in c.evictions]) for c in said if isinstance(c, m.Execute)] == [
        ("of-another", ["cheap"])
    ]
    assert cluster.plans() == []


def test_a_plan_without_events_is_over_some_time_after_its_deadline(cluster: Cluster) -> None:
    (plan,) = cluster.plans()
    cluster.reserve(plan)
    cluster.evicted(plan)
    assert cluster.plans(after_s=plan.deadline_s) == []
    assert cluster.plans(after_s=60) == []  # it waits its patience first
    assert len(cluster.plans()) == 1


def test_freed_capacity_belongs_to_its_plan_until_the_bindings_are_seen() -> None:
    cluster = Cluster("a", gpus=1)
    cluster.run("low", "a", 0)
    cluster.wait("high")
    (plan,) = cluster.plans()
    cluster.reserve(plan)
    cluster.gone("low")
    cluster.say(m.Ended(plan.plan_id, executed=True))
    cluster.wait("later")
    assert cluster.plans() == []
    assert cluster.core.pending[cluster.pods["later"].metadata.uid].not_before > cluster.now


def test_a_replacement_is_protected_even_if_the_victim_is_gone_before_the_answer() -> None:
    cluster = Cluster("a", gpus=1)
    victim = cluster.run("low", "a", 0)
    cluster.wait("high")
    (plan,) = cluster.plans()
    cluster.reserve(plan)
    cluster.gone("low")
    cluster.evicted(plan)
    again = cluster.run("low", "a", 0)
    assert again.metadata.uid == victim.metadata.uid
    assert cluster.core.protection.is_exempt(cluster.core.book.pods[again.metadata.uid], cluster.now)


def test_one_rejection_counts_for_the_whole_gang() -> None:
    cluster = Cluster("a", gpus=2)
    for number in range(2):
        cluster.run(f"low-{number}", "a", number)
    mates = [
        build.gpu_pod(f"g-{n}", gpus=1, priority=100, annotations={"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"})
        for n in range(2)
    ]
    cluster.say(m.FactsSeen(tuple(Put(object=mate) for mate in mates)))
    cluster.say(m.Rejected(mates[1].metadata.uid))
    assert cluster.victims() == [["low-0", "low-1"]]


def test_a_standby_instance_proposes_nothing(cluster: Cluster) -> None:
    cluster.now += 1
    assert cluster.say(m.Tick(proposes=False)) == []
    assert len(cluster.plans()) == 1


def test_an_obsolete_plan_does_not_count_as_failed_suspension() -> None:
    """Otherwise the next plan would evict pods that could have been paused."""
    cluster = Cluster("n", gpus=1)
    cluster.run("low", "n", 0, memory_mib=40_960, compute_milli=1000, strategy="interposer")
    for name in ("high", "next"):
        cluster.wait(name, gpus=0, memory="40960Mi", compute=50)
        (plan,) = cluster.plans()
        assert [victim.action for victim in plan.victims] == ["throttle"]
        cluster.reserve(plan)
        cluster.say(m.FactsSeen((Gone(object=cluster.pods.pop(name)),)))
        cluster.say(m.Ended(plan.plan_id, executed=False))


def test_one_tick_plans_no_longer_than_the_lease_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other groups are planned in the next tick, the highest priority first."""
    monkeypatch.setattr(core, "MAX_NODES_CHECKED", 3 + 300 + 1)
    cluster = Cluster("a", "b", "c", gpus=1)
    for name in "abc":
        cluster.run(f"low-{name}", name, 0)
    for priority in (1, 3, 2):
        cluster.wait(f"high-{priority}", priority=priority)
    assert [[b.name for plan in cluster.plans() for b in plan.beneficiaries] for _ in range(3)] == [
        ["high-3", "high-2"],
        ["high-1"],
        [],
    ]


def made_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the nodes whose prices are computed from now on."""
    made: list[str] = []

    def price_of(state: PodState, book: Book, now: float) -> DisruptionCost:
        made.append(state.charged)
        return disruption_cost.price_of(state, book, now)

    monkeypatch.setattr(victims, "price_of", price_of)
    return made


@pytest.mark.parametrize("proposes", [False, True])
def test_a_tick_builds_candidates_of_limited_nodes_and_planning_waits_for_all(
    monkeypatch: pytest.MonkeyPatch, proposes: bool
) -> None:
    """This also holds for a standby instance and without pending pods.

    The first plan finds the candidates.
    """
    monkeypatch.setattr(victims, "MAX_NODES_BUILT", 2)
    made = made_on(monkeypatch)
    cluster = Cluster(*"abcde", gpus=1)
    for number, name in enumerate("abcde"):
        cluster.run(f"low-{name}", name, 0, ran_s=100 - number)
    cluster.wait("high")
    seen = []
    for _ in range(3):
        made.clear()
        cluster.now += 1
        said = cluster.say(m.Tick(proposes=proposes))
        seen.append(set(made))
        assert bool(said) == (proposes and len(seen) == 3)
    assert [len(nodes) for nodes in seen] == [2, 2, 1]
    made.clear()
    if not proposes:
        assert cluster.victims() == [["low-e"]]
        assert made == []


def test_a_dry_run_says_that_not_all_nodes_have_been_examined(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> None:
    monkeypatch.setattr(victims, "MAX_NODES_BUILT", 1)
    answers = [cluster.core.dry_run("team", "high", cluster.now) for _ in range(2)]
    assert [answer.plan is None for answer in answers] == [True, False]
    assert answers[0].sentence == "not all nodes have been examined yet; ask again in a few seconds"


def test_a_round_rebuilds_limited_changed_nodes_and_leaves_out_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(*"abc", gpus=1)
    for number, name in enumerate("abc"):
        cluster.run(f"low-{name}", name, 0, ran_s=100 - number)
    assert cluster.plans() == []
    monkeypatch.setattr(victims, "MAX_NODES_BUILT", 0)
    monkeypatch.setattr(victims, "MAX_NODES_RENEWED", 0)
    for name in "bc":
        cluster.say(m.FactsSeen((Put(object=build.newer(cluster.pods[f"low-{name}"])),)))
    cluster.wait("high")
    assert cluster.victims() == [["low-a"]]
    cluster.wait("other")
    assert cluster.victims() == []
    monkeypatch.undo()
    assert cluster.victims() == [["low-c"]]


def put_budget(cluster: Cluster, allowed: int, label: str = "kept") -> None:
    meta = Meta(name="budget", namespace="team", uid="uid-budget", resource_version=build.next_version())
    spec = DisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": label}))
    cluster.say(
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


def test_current_budgets_apply_to_candidates_built_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget did not exist before, or allowed another number, or selected other pods.

    Candidates are not built again for a budget whose selector is known.
    """
    cluster = Cluster("a", "b", gpus=1)
    cluster.run("kept", "a", 0, ran_s=1, labels={"app": "kept"})
    cluster.run("dear", "b", 0, ran_s=9_000)
    cluster.wait("high")

    def victims_with(allowed: int, label: str = "kept") -> list[str]:
        put_budget(cluster, allowed, label)
        cluster.say(m.Tick(proposes=False))
        answer = cluster.core.dry_run("team", "high", cluster.now)
        assert answer.plan is not None
        return [victim.name for victim in answer.plan.victims]

    cluster.say(m.Tick(proposes=False))
    assert victims_with(0) == ["dear"]
    made = made_on(monkeypatch)
    assert victims_with(1) == ["kept"]
    assert victims_with(0) == ["dear"]
    assert made == []
    assert victims_with(0, "others") == ["kept"]


def test_idle_ticks_rebuild_changed_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_on(monkeypatch)
    cluster = Cluster(*"abc", gpus=1)
    for name in "abc":
        cluster.run(f"low-{name}", name, 0)
    cluster.plans()
    cluster.say(m.FactsSeen((Put(object=build.newer(cluster.pods["low-b"])),)))
    made.clear()
    cluster.plans()
    assert made == ["b"] * len(made) != []
    made.clear()
    cluster.plans()
    assert made == []


def test_prices_of_unchanged_nodes_are_refreshed_a_few_per_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(victims, "MAX_NODES_RENEWED", 1)
    priced = made_on(monkeypatch)
    cluster = Cluster("a", "b", "c", gpus=1)
    for name in "abc":
        cluster.run(f"low-{name}", name, 0)
    cluster.wait("high")
    made = []
    for _ in range(4):
        priced.clear()
        cluster.now += 20
        cluster.core.dry_run("team", "high", cluster.now)
        made.append(set(priced))
    assert made == [{"a", "b", "c"}, {"a"}, {"b"}, {"c"}]


@pytest.mark.parametrize("heard", ["unknown", "too late", "by a snapshot"])
def test_a_replacement_is_protected_though_the_eviction_answer_is_lost(heard: str) -> None:
    """The controller's next pod may appear before the answer."""
    cluster = Cluster("n", gpus=1)
    owners = (OwnerReference(uid="o", kind="ReplicaSet", name="r", controller=True),)
    cluster.run("low", "n", 0, owners=owners)
    cluster.wait("high")
    (plan,) = cluster.plans()
    assert cluster.reserve(plan) == ["low"]
    if heard == "unknown":
        cluster.evicted(plan, low="unknown")
    if heard == "by a snapshot":
        cluster.pods.pop("low")
        cluster.say(m.SnapshotSeen(build.put(build.node("n"), *cluster.pods.values())))
        cluster.say(m.GrantOver("grant-low"))
    else:
        cluster.gone("low")
    cluster.say(m.Ended(plan.plan_id, executed=False))
    cluster.say(m.FactsSeen((Gone(object=cluster.pods.pop("high")),)))
    cluster.run("low", "n", 0, owners=owners, uid="its-next")
    cluster.wait("another")
    assert cluster.plans() == []


def test_free_capacity_that_placement_does_not_use_counts_only_for_a_while() -> None:
    """The planner does not know a pod's affinity to other pods, or volumes.

    Placement may refuse an empty node.
    """
    cluster = Cluster("a", "b", gpus=1)
    cluster.run("low", "b", 0)
    cluster.wait("high")
    for _ in range(9):
        assert cluster.plans() == []
    found = [[victim.name for victim in plan.victims] for _ in range(5) for plan in cluster.plans()]
    assert found == [["low"]]


def test_capacity_that_has_just_become_free_is_left_to_placement() -> None:
    """This holds however long the capacity was expected before."""
    cluster = Cluster("a", "b", gpus=1)
    cluster.run("low", "b", 0)
    ending = cluster.run("ends", "a", 0)
    cluster.wait("high")
    cluster.say(m.FactsSeen((Gone(object=ending),)))
    for _ in range(20):
        assert cluster.plans() == []
    cluster.say(m.GrantOver("grant-ends"))
    for _ in range(9):
        assert cluster.plans() == []
