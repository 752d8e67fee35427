"""What a dry run says where nobody gives way, and of pods that do not wait yet."""

from __future__ import annotations

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
from tests.unit.services.preemptor.world import Cluster


def asked(cluster: Cluster, name: str = "high") -> PreemptAnswer:
    return cluster.core.dry_run("team", name, cluster.now)


def budget(cluster: Cluster, label: str) -> None:
    """That lets nobody go."""
    meta = Meta(name=label, namespace="team", uid=f"uid-{label}", resource_version=build.next_version())
    spec = DisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": label}))
    cluster.say(
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


def test_where_nobody_gives_way_pods_are_counted_by_why_they_are_left_alone() -> None:
    cluster = Cluster("n", "other", gpus=6)
    budget(cluster, "kept")
    for gpu in range(2):
        cluster.run(f"equal-{gpu}", "n", gpu, priority=100)
    cluster.run("young", "n", 2, annotations={"kerf.dev/min-runtime": "1h"})
    for gpu in range(3, 6):
        cluster.run(f"kept-{gpu}", "n", gpu, labels={"app": "kept"})
    cluster.wait("high", node_selector={"kubernetes.io/hostname": "n"})
    answer = asked(cluster)
    assert answer.plan is None
    assert answer.kept == ("3 pods: disruption budget", "2 pods: of no lower priority", "1 pod: minimum run time")


def test_who_might_go_and_is_not_enough_is_counted_too() -> None:
    cluster = Cluster("n", gpus=2)
    cluster.run("low", "n", 0)
    cluster.run("equal", "n", 1, priority=100)
    cluster.wait("high", gpus=2)
    assert sorted(asked(cluster).kept) == [
        "1 pod: of no lower priority",
        "1 pod: they may be asked, and that does not make enough room",
    ]


def test_the_successor_of_one_that_made_room_and_a_spent_hour_are_named() -> None:
    owner = (OwnerReference(uid="set", kind="ReplicaSet", name="web", controller=True),)
    cluster = Cluster("n", gpus=1, evictions_per_hour=1)
    cluster.run("first", "n", 0, owners=owner)
    cluster.wait("high")
    (plan,) = cluster.plans()
    cluster.reserve(plan)
    cluster.evicted(plan)
    cluster.gone("first")
    cluster.say(m.Ended(plan.plan_id, executed=True))
    cluster.say(m.FactsSeen(build.gone(cluster.pods.pop("high"))))
    cluster.run("alone", "n", 0)
    cluster.wait("next")
    assert asked(cluster, "next").kept == ("1 pod: not evicted: their namespace's hourly budget of evictions is spent",)


def test_members_go_with_a_gang_of_which_some_are_left_alone() -> None:
    cluster = Cluster("n", gpus=2)
    gang = {"kerf.dev/gang": "train", "kerf.dev/gang-size": "2"}
    cluster.run("one", "n", 0, annotations=gang)
    cluster.run("two", "n", 1, annotations=gang | {"kerf.dev/min-runtime": "1h"})
    cluster.wait("high")
    assert sorted(asked(cluster).kept) == [
        "1 pod: minimum run time",
        "1 pod: they go with their gang, of which some are left alone",
    ]


def test_between_queues_it_is_said_that_nobody_has_more_than_its_due() -> None:
    cluster = Cluster("n", gpus=1)
    cluster.say(m.FactsSeen((Put(object=build.queues("queues: [{name: a, guaranteed: {gpus: 1}}, {name: b}]")),)))
    cluster.run("own", "n", 0, labels={"kerf.dev/queue": "a"})
    cluster.wait("high", labels={"kerf.dev/queue": "b"})
    assert asked(cluster).kept == ("1 pod: their queue has no more than it is due",)


def test_pods_on_nodes_that_would_never_do_are_not_counted() -> None:
    cluster = Cluster("n", "other", gpus=1)
    cluster.run("equal", "n", 0, priority=100)
    cluster.run("elsewhere", "other", 0, priority=100)
    cluster.wait("high", node_selector={"kubernetes.io/hostname": "n"})
    assert asked(cluster).kept == ("1 pod: of no lower priority",)


def test_on_a_large_cluster_it_is_said_that_not_all_were_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ineligible_pods, "MAX_PODS", 1)
    cluster = Cluster("n", "other", gpus=1)
    for node in ("n", "other"):
        cluster.run(f"equal-{node}", node, 0, priority=100)
    cluster.wait("high")
    assert asked(cluster).kept == ("1 pod: of no lower priority", "others: not counted, after 1 pods")


def test_a_pod_that_is_gated_is_answered_as_if_its_gates_were_gone() -> None:
    cluster = Cluster("n", gpus=1)
    cluster.run("low", "n", 0)
    cluster.wait("high", scheduling_gates=(SchedulingGate(name="team/quota"),))
    answer = asked(cluster)
    assert answer.plan is not None
    assert [victim.name for victim in answer.plan.victims] == ["low"]
    assert answer.sentence == "were its scheduling gates (team/quota) gone: 1 pod would end, and lose 0 GPU-seconds"
    assert cluster.plans() == [], "nobody is asked for it before they are"


def test_a_gang_that_is_gated_is_answered_as_a_whole() -> None:
    cluster = Cluster("n", gpus=2)
    for gpu in range(2):
        cluster.run(f"low-{gpu}", "n", gpu)
    notes = {"kerf.dev/gang": "train", "kerf.dev/gang-size": "2"}
    for number in range(2):
        cluster.wait(f"g{number}", annotations=notes, scheduling_gates=(SchedulingGate(name="gate"),))
    answer = asked(cluster, "g0")
    assert answer.plan is not None, answer.sentence
    assert (len(answer.plan.beneficiaries), len(answer.plan.victims)) == (2, 2)


def test_other_ways_that_were_not_taken_are_named_with_their_price() -> None:
    """At the least where they were not worked out; two at most."""
    cluster = Cluster("a", "b", "c", "d", gpus=1)
    for node, ran_s in (("a", 10), ("b", 1_000), ("c", 500), ("d", 2_000)):
        cluster.run(f"on-{node}", node, 0, ran_s=ran_s)
    cluster.wait("high")
    told = asked(cluster).alternatives
    assert told == (
        Alternative(nodes=("c",), action="evict", victims=1, price_gpu_seconds=500, at_least=True),
        Alternative(nodes=("b",), action="evict", victims=1, price_gpu_seconds=1_000, at_least=True),
    )
    cluster.now += 1
    (proposed,) = [command for command in cluster.say(m.Tick()) if isinstance(command, m.Propose)]
    assert isinstance(proposed.event, PreemptionProposed)
    assert [other.nodes for other in proposed.event.alternatives] == [("c",), ("b",)]


def test_a_node_that_was_worked_out_and_is_dearer_in_the_end_is_an_alternative_with_its_own_price() -> None:
    """Two small ones on `a` look cheaper than the one on `b`, until both have to go."""
    cluster = Cluster("a", "b", gpus=1)
    for number in range(2):
        cluster.run(f"small-{number}", "a", 0, memory_mib=40_960, ran_s=1_000)
    cluster.run("large", "b", 0, memory_mib=81_920, compute_milli=1000, ran_s=600)
    cluster.wait("high", gpus=0, memory="80Gi")
    answer = asked(cluster)
    assert answer.plan is not None
    assert [victim.name for victim in answer.plan.victims] == ["large"]
    assert answer.alternatives == (Alternative(nodes=("a",), action="evict", victims=2, price_gpu_seconds=1_000),)


def test_where_there_is_one_way_there_are_no_others() -> None:
    cluster = Cluster("n", gpus=1)
    cluster.run("low", "n", 0)
    cluster.wait("high")
    assert asked(cluster).alternatives == ()
