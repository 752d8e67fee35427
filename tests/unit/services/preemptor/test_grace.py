"""Grace periods: a plan has the time that its victims have, and who ends already is waited for."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from services.preemptor import messages as m
from services.preemptor.config import Config
from services.preemptor.plan_builder import deadline_of
from shared.contracts.facts import Gone, Put
from shared.contracts.preemption import Victim
from shared.model.life import DEFAULT_GRACE_S, STUCK_S
from shared.model.objects import Pod
from tests.support import build
from tests.unit.services.preemptor.world import Cluster

SETTING_S = Config().deadline_s


def _grace(cluster: Cluster, name: str, node: str, gpu: int = 0, *, grace_s: int | None, ran_s: int = 0) -> Pod:
    return cluster.run(name, node, gpu, ran_s=ran_s, termination_grace_period_seconds=grace_s)


def _ends(cluster: Cluster, pod: Pod, in_s: float) -> None:
    by = datetime.fromtimestamp(cluster.now + in_s, UTC).isoformat()
    meta = msgspec.structs.replace(pod.metadata, deletion_timestamp=by, resource_version=build.next_version())
    cluster.say(m.FactsSeen((Put(object=msgspec.structs.replace(pod, metadata=meta)),)))


def test_a_plan_has_the_time_that_its_slowest_victim_has_to_end() -> None:
    cluster = Cluster("n", gpus=3)
    for gpu, grace_s in enumerate((0, 600, None)):
        _grace(cluster, f"v{gpu}", "n", gpu, grace_s=grace_s)
    cluster.wait("high", gpus=3)
    (plan,) = cluster.plans()
    assert {victim.name: victim.grace_s for victim in plan.victims} == {"v0": 0, "v1": 600, "v2": DEFAULT_GRACE_S}
    assert plan.deadline_s == SETTING_S + 600


def test_who_only_gives_something_up_has_no_grace_period() -> None:
    cluster = Cluster("n", gpus=1)
    cluster.run(
        "v", "n", 0, memory_mib=20_480, compute_milli=1000, strategy="interposer", termination_grace_period_seconds=600
    )
    cluster.wait("high", gpus=0, memory="20Gi", compute=50)
    (plan,) = cluster.plans()
    assert [(victim.action, victim.grace_s) for victim in plan.victims] == [("throttle", 0)]
    assert plan.deadline_s == SETTING_S


def test_what_ends_nobody_takes_its_setting_alone() -> None:
    assert deadline_of([], 7) == 7
    assert deadline_of([Victim(uid="u", namespace="team", name="v", grant_id="g", grace_s=5)], 7) == 12


def test_a_dry_run_says_a_grace_period_that_is_longer_than_most() -> None:
    cluster = Cluster("n", gpus=1)
    _grace(cluster, "v", "n", grace_s=600)
    cluster.wait("high")
    cluster.now += 1
    assert (
        cluster.core.dry_run("team", "high", cluster.now).sentence
        == "1 pod would end, and lose 1 GPU-seconds, and have up to 600 s to end"
    )


def test_whoever_has_waited_for_long_waits_for_who_ends_by_now_and_asks_another_once_that_is_stuck() -> None:
    cluster = Cluster("a", "b", gpus=1, leaving_s=60)
    first = _grace(cluster, "first", "a", grace_s=600)
    cluster.run("cheap", "b", 0)
    cluster.wait("high")
    cluster.now += 90
    _ends(cluster, first, 600)
    for _ in range(600 + int(STUCK_S) - 2):
        assert cluster.victims() == []
    cluster.now += 2
    assert cluster.victims() == [["cheap"]]


def test_a_slice_that_is_not_given_back_in_time_is_waited_for_no_more() -> None:
    """Its time begins when the pod is gone, however long anybody has waited for that."""
    cluster = Cluster("a", "b", gpus=1, leaving_s=60)
    ending = _grace(cluster, "ends", "a", grace_s=600)
    cluster.run("cheap", "b", 0)
    _ends(cluster, ending, 600)
    cluster.wait("high")
    for _ in range(300):
        assert cluster.victims() == []
    cluster.say(m.FactsSeen((Gone(object=ending),)))
    for _ in range(59):
        assert cluster.victims() == []
    cluster.now += 2
    assert cluster.victims() == [["cheap"]]


def _given_up(cluster: Cluster) -> Pod:
    """A plan of two victims came to nothing: one is gone, and another pod has its GPU; one still ends, in 600 s."""
    quick, slow = _grace(cluster, "quick", "n", 0, grace_s=0), _grace(cluster, "slow", "n", 1, grace_s=600)
    cluster.wait("high", gpus=2)
    (plan,) = cluster.plans()
    cluster.reserve(plan)
    cluster.now += 100
    _ends(cluster, slow, 600)
    cluster.gone(quick.metadata.name)
    cluster.say(m.Ended(plan.plan_id, executed=False))
    return slow


def test_of_a_plan_that_came_to_nothing_who_still_ends_is_waited_for_before_anybody_else_is_asked() -> None:
    cluster = Cluster("n", gpus=3, leaving_s=60)
    _grace(cluster, "third", "n", 2, grace_s=0, ran_s=10)
    _given_up(cluster)
    _grace(cluster, "later", "n", 0, grace_s=0)
    for _ in range(400):
        assert cluster.victims() == []
    cluster.gone("slow")
    assert cluster.victims() == [["later"]]


def test_who_ends_for_others_is_waited_for_only_for_a_while_where_it_is_not_enough() -> None:
    cluster = Cluster("n", gpus=3, leaving_s=60)
    ending = _grace(cluster, "ends", "n", 0, grace_s=600)
    for gpu in (1, 2):
        _grace(cluster, f"v{gpu}", "n", gpu, grace_s=0)
    _ends(cluster, ending, 600)
    cluster.wait("high", gpus=2)
    for _ in range(59):
        assert cluster.victims() == []
    cluster.now += 2
    assert cluster.victims() == [["v1", "v2"]], "placement keeps no place that hangs on whoever ends for another reason"


def test_a_dry_run_names_what_would_be_planned_without_who_ends_already() -> None:
    cluster = Cluster("n", gpus=3)
    ending = _grace(cluster, "ends", "n", 0, grace_s=600)
    for gpu in (1, 2):
        _grace(cluster, f"v{gpu}", "n", gpu, grace_s=0)
    _ends(cluster, ending, 600)
    cluster.wait("high", gpus=2)
    cluster.now += 1
    plan = cluster.core.dry_run("team", "high", cluster.now).plan
    assert plan is not None
    assert sorted(victim.name for victim in plan.victims) == ["v1", "v2"]
