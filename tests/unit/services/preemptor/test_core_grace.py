"""Grace periods: they extend a plan's deadline, and terminating pods are waited for."""

from __future__ import annotations

from services.preemptor import messages as m
from services.preemptor.config import Config
from services.preemptor.plans.builder import deadline_of
from shared.contracts.facts import Gone, Put
from shared.contracts.preemption import Victim
from shared.model.life import DEFAULT_GRACE_S, STUCK_S
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.preemptor import Preemptor

SETTING_S = Config().deadline_s


def _grace(preemptor: Preemptor, name: str, node: str, gpu: int = 0, *, grace_s: int | None, ran_s: int = 0) -> Pod:
    return preemptor.run(name, node, gpu, ran_s=ran_s, termination_grace_period_seconds=grace_s)


def _ends(preemptor: Preemptor, pod: Pod, in_s: float) -> None:
    preemptor.send(m.FactsSeen((Put(object=build.ending(pod, preemptor.now + in_s)),)))


def test_a_plans_deadline_includes_the_longest_grace_period() -> None:
    preemptor = Preemptor("n", gpus=3)
    for gpu, grace_s in enumerate((0, 600, None)):
        _grace(preemptor, f"v{gpu}", "n", gpu, grace_s=grace_s)
    preemptor.wait("high", gpus=3)
    (plan,) = preemptor.plans()
    assert {victim.name: victim.grace_s for victim in plan.victims} == {"v0": 0, "v1": 600, "v2": DEFAULT_GRACE_S}
    assert plan.deadline_s == SETTING_S + 600


def test_a_suspended_victim_has_no_grace_period() -> None:
    preemptor = Preemptor("n", gpus=1)
    preemptor.run(
        "v", "n", 0, memory_mib=20_480, compute_milli=1000, strategy="interposer", termination_grace_period_seconds=600
    )
    preemptor.wait("high", gpus=0, memory="20Gi", compute=50)
    (plan,) = preemptor.plans()
    assert [(victim.action, victim.grace_s) for victim in plan.victims] == [("throttle", 0)]
    assert plan.deadline_s == SETTING_S


def test_a_plan_without_evictions_has_only_the_configured_deadline() -> None:
    assert deadline_of([], 7) == 7
    assert deadline_of([Victim(uid="u", namespace="team", name="v", grant_id="g", grace_s=5)], 7) == 12


def test_a_dry_run_names_a_long_grace_period() -> None:
    preemptor = Preemptor("n", gpus=1)
    _grace(preemptor, "v", "n", grace_s=600)
    preemptor.wait("high")
    preemptor.now += 1
    assert (
        preemptor.core.dry_run("team", "high", preemptor.now).sentence
        == "1 pod would be evicted and lose 1 GPU-seconds, with up to 600 s to terminate"
    )


def test_a_pod_waits_for_terminating_pods_and_preempts_another_when_one_is_stuck() -> None:
    preemptor = Preemptor("a", "b", gpus=1, leaving_s=60)
    first = _grace(preemptor, "first", "a", grace_s=600)
    preemptor.run("cheap", "b", 0)
    preemptor.wait("high")
    preemptor.now += 90
    _ends(preemptor, first, 600)
    for _ in range(600 + int(STUCK_S) - 2):
        assert preemptor.victims() == []
    preemptor.now += 2
    assert preemptor.victims() == [["cheap"]]


def test_a_slice_that_is_not_released_in_time_is_waited_for_no_longer() -> None:
    """The time starts when the pod is gone, however long the pod took."""
    preemptor = Preemptor("a", "b", gpus=1, leaving_s=60)
    ending = _grace(preemptor, "ends", "a", grace_s=600)
    preemptor.run("cheap", "b", 0)
    _ends(preemptor, ending, 600)
    preemptor.wait("high")
    for _ in range(300):
        assert preemptor.victims() == []
    preemptor.send(m.FactsSeen((Gone(object=ending),)))
    for _ in range(59):
        assert preemptor.victims() == []
    preemptor.now += 2
    assert preemptor.victims() == [["cheap"]]


def _given_up(preemptor: Preemptor) -> Pod:
    """A cancelled plan of two victims: one is gone, and another pod has its GPU; one still ends, in 600 s."""
    quick, slow = _grace(preemptor, "quick", "n", 0, grace_s=0), _grace(preemptor, "slow", "n", 1, grace_s=600)
    preemptor.wait("high", gpus=2)
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    preemptor.now += 100
    _ends(preemptor, slow, 600)
    preemptor.gone(quick.metadata.name)
    preemptor.send(m.Ended(plan.plan_id, executed=False))
    return slow


def test_victims_of_a_cancelled_plan_that_still_end_are_waited_for_first() -> None:
    preemptor = Preemptor("n", gpus=3, leaving_s=60)
    _grace(preemptor, "third", "n", 2, grace_s=0, ran_s=10)
    _given_up(preemptor)
    _grace(preemptor, "later", "n", 0, grace_s=0)
    for _ in range(400):
        assert preemptor.victims() == []
    preemptor.gone("slow")
    assert preemptor.victims() == [["later"]]


def test_a_terminating_pod_that_frees_too_little_is_waited_for_only_for_a_while() -> None:
    preemptor = Preemptor("n", gpus=3, leaving_s=60)
    ending = _grace(preemptor, "ends", "n", 0, grace_s=600)
    for gpu in (1, 2):
        _grace(preemptor, f"v{gpu}", "n", gpu, grace_s=0)
    _ends(preemptor, ending, 600)
    preemptor.wait("high", gpus=2)
    for _ in range(59):
        assert preemptor.victims() == []
    preemptor.now += 2
    assert preemptor.victims() == [["v1", "v2"]], "placement reserves nothing that depends on other terminating pods"


def test_a_dry_run_names_the_plan_without_terminating_pods() -> None:
    preemptor = Preemptor("n", gpus=3)
    ending = _grace(preemptor, "ends", "n", 0, grace_s=600)
    for gpu in (1, 2):
        _grace(preemptor, f"v{gpu}", "n", gpu, grace_s=0)
    _ends(preemptor, ending, 600)
    preemptor.wait("high", gpus=2)
    preemptor.now += 1
    plan = preemptor.core.dry_run("team", "high", preemptor.now).plan
    assert plan is not None
    assert sorted(victim.name for victim in plan.victims) == ["v1", "v2"]
