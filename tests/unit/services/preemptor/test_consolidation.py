"""Migration among equals: when placement is asked, and which advice becomes a plan."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from services.preemptor import messages as m
from shared.contracts.explain import Advice, AdvisedPlace, Move
from shared.contracts.facts import Gone
from shared.contracts.preemption import MIGRATIONS, Plan, Reserved, Spared
from shared.model.kube_object import OwnerReference
from shared.model.objects import Pod
from tests.support.harness.preemptor import NOW, Preemptor

HOUR_S = 3_600


class FragmentedCluster(Preemptor):
    """Two nodes of two GPUs with one pod each: x, which has run for 100 s, and y, for 10."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            "a", "b", **({"defragmentation_gpu_seconds_per_hour": 10_000, "reclaim_patience": 0} | settings)
        )
        self.run("x", "a", 0, ran_s=100, owners=owned("x"))
        self.run("y", "b", 0, ran_s=10, owners=owned("y"))

    def asked(self, after_s: float = 1.0) -> list[m.AskAdvice]:
        self.now += after_s
        return [command for command in self.send(m.Tick()) if isinstance(command, m.AskAdvice)]

    def advised(self, *moves: tuple[str, str, str], places: tuple[tuple[str, str], ...] = (("w", "b"),)) -> list[Plan]:
        advice = Advice(
            sentence="",
            moves=tuple(
                Move(namespace="team", name=name, source=source, target=target) for name, source, target in moves
            ),
            places=tuple(AdvisedPlace(namespace="team", name=name, node=node) for name, node in places),
        )
        return [command.plan for command in self.send(m.Advised(advice)) if isinstance(command, m.Propose)]

    def waits(self, name: str = "w", **rest: Any) -> Pod:
        return self.wait(name, **({"priority": 0, "gpus": 2} | rest))


def owned(name: str) -> tuple[OwnerReference, ...]:
    return (OwnerReference(uid=f"owner-{name}", kind="Job", name=name, controller=True),)


Y = ("y", "b", "a")


def test_no_advice_is_requested_unless_migrations_are_enabled() -> None:
    preemptor = FragmentedCluster(defragmentation_gpu_seconds_per_hour=0)
    preemptor.waits()
    assert [preemptor.asked() for _ in range(30)] == [[]] * 30


def test_placements_advice_becomes_a_plan() -> None:
    preemptor = FragmentedCluster()
    preemptor.waits()
    (question,) = preemptor.asked()
    assert (question.name, question.most_gpu_seconds) == ("w", 10_000)
    (plan,) = preemptor.advised(Y)
    assert plan.consolidates
    assert [(v.name, v.action, v.to, v.grant_id, v.lost_gpu_seconds) for v in plan.victims] == [
        ("y", "move", "a", "grant-y", 11)
    ]
    assert [(b.name, b.node) for b in plan.beneficiaries] == [("w", "b")]
    assert preemptor.reserve(plan) == ["y"]


def test_a_migration_plans_deadline_includes_grace_periods() -> None:
    preemptor = FragmentedCluster()
    preemptor.gone("y")
    preemptor.run("y", "b", 0, ran_s=10, owners=owned("y"), termination_grace_period_seconds=600)
    preemptor.waits()
    preemptor.asked()
    (plan,) = preemptor.advised(Y)
    assert plan.deadline_s == preemptor.core.config.deadline_s + 600


def test_the_eviction_reason_of_a_migration_names_target_and_beneficiary() -> None:
    preemptor = FragmentedCluster()
    preemptor.waits()
    preemptor.asked()
    (plan,) = preemptor.advised(Y)
    (execute,) = [
        c for c in preemptor.send(m.Answered(Reserved(plan_id=plan.plan_id, ok=True))) if isinstance(c, m.Execute)
    ]
    assert (
        execute.evictions[0].reason
        == f"migrated to a so that team/w fits (plan {plan.plan_id}); capacity is reserved for it there"
    )


def test_there_is_one_question_at_a_time_with_a_pause_between() -> None:
    preemptor = FragmentedCluster()
    preemptor.waits("w")
    preemptor.waits("v")
    (first,) = preemptor.asked()
    assert [preemptor.asked() for _ in range(5)] == [[]] * 5, "it has not been answered"
    preemptor.advised()
    (second,) = preemptor.asked()
    assert {first.name, second.name} == {"v", "w"}
    preemptor.advised()
    assert preemptor.asked(after_s=0.5) == []


def test_of_new_pending_pods_the_highest_priority_comes_first() -> None:
    preemptor = FragmentedCluster()
    for name, priority in (("u", -7), ("w", 0), ("v", -3)):
        preemptor.waits(name, priority=priority)
    names = []
    for _ in range(3):
        names += [question.name for question in preemptor.asked(after_s=2.0)]
        preemptor.advised()
    assert names == ["w", "v", "u"]


def test_an_instance_that_has_lost_the_lead_proposes_nothing() -> None:
    """Its question does not count as open when it leads again."""
    preemptor = FragmentedCluster()
    preemptor.waits()
    preemptor.asked()
    preemptor.send(m.Tick(proposes=False))
    assert preemptor.advised(Y) == []
    assert len(preemptor.asked(after_s=12.0)) == 1


def test_the_pod_not_asked_about_for_longest_comes_first() -> None:
    preemptor = FragmentedCluster()
    preemptor.waits("w")
    preemptor.waits("v")
    names = []
    for _ in range(40):
        for question in preemptor.asked(after_s=3.0):
            names.append(question.name)
            preemptor.advised()
    assert len(names) >= 10
    assert all(one != other for one, other in itertools.pairwise(names))


def test_a_pod_without_advice_is_asked_about_again_later() -> None:
    """It is asked about again after about ten seconds, as long as it is pending."""
    preemptor = FragmentedCluster()
    pod = preemptor.waits()
    times = []
    for _ in range(60):
        for _ in preemptor.asked():
            times.append(preemptor.now)
            preemptor.advised()
    assert 4 <= len(times) <= 6
    preemptor.send(m.FactsSeen((Gone(object=pod),)))
    assert [preemptor.asked() for _ in range(30)] == [[]] * 30


def test_no_pod_is_migrated_for_a_pod_that_never_preempts() -> None:
    preemptor = FragmentedCluster()
    preemptor.waits(preemption_policy="Never")
    assert [preemptor.asked() for _ in range(30)] == [[]] * 30


@pytest.mark.parametrize(("ran_s", "waits_s"), [(10, 6), (100, 51)])
def test_a_pod_waits_for_as_much_as_the_migrations_would_have_disturbed(ran_s: int, waits_s: int) -> None:
    """In GPU-seconds: it requests two GPUs, and the migrated pod has one."""
    preemptor = FragmentedCluster(reclaim_patience=1.0)
    preemptor.waits()
    began, name = preemptor.now, "x" if ran_s == 100 else "y"
    while True:
        preemptor.now += 0.5
        for command in preemptor.send(m.Tick()):
            if isinstance(command, m.AskAdvice) and preemptor.advised(
                (name, "a", "b") if name == "x" else Y, places=(("w", "a" if name == "x" else "b"),)
            ):
                assert waits_s - 2 <= preemptor.now - began <= waits_s + 12, (
                    "questions about one pod are ten seconds apart"
                )
                return
        assert preemptor.now - began < 200


def test_migrations_disturb_no_more_per_hour_than_the_setting_allows() -> None:
    """What a plan disturbs counts for an hour, and the next question names what is left."""
    preemptor = FragmentedCluster(defragmentation_gpu_seconds_per_hour=20)
    preemptor.waits()
    assert preemptor.asked()[0].most_gpu_seconds == 20
    (plan,) = preemptor.advised(Y)
    preemptor.reserve(plan)
    preemptor.waits("v")
    (question,) = preemptor.asked(after_s=3.0)
    assert (question.name, question.most_gpu_seconds) == ("v", 9)
    assert preemptor.advised(("x", "a", "b"), places=(("v", "a"),)) == [], "that would be a hundred"
    preemptor.send(m.Ended(plan.plan_id, executed=False))
    assert max(q.most_gpu_seconds for _ in range(12) for q in preemptor.asked() if preemptor.advised() == []) == 9, (
        "a pod may have been evicted for it"
    )
    later = [q.most_gpu_seconds for _ in range(3) for q in preemptor.asked(after_s=HOUR_S) if preemptor.advised() == []]
    assert later[-1] == 20


def test_a_refused_migration_plan_costs_nothing_and_is_not_repeated_at_once() -> None:
    preemptor = FragmentedCluster(defragmentation_gpu_seconds_per_hour=20)
    preemptor.waits()
    preemptor.asked()
    (plan,) = preemptor.advised(Y)
    preemptor.reserve(plan, ok=False)
    since, questions = preemptor.now, []
    while not questions:
        questions = preemptor.asked()
    assert preemptor.now - since >= 60
    assert questions[0].most_gpu_seconds == 20


def saved(commands: list[m.Command]) -> list[Spared]:
    """The records of migrations that are to be persisted."""
    records = [command.record for command in commands if isinstance(command, m.SaveProtection)]
    return [record for record in records if record.owner == MIGRATIONS]


def proposing(preemptor: FragmentedCluster) -> tuple[Plan, Spared]:
    """The plan that migrates y, and what is persisted of it."""
    preemptor.waits()
    preemptor.asked()
    moves = (Move(namespace="team", name="y", source="b", target="a"),)
    places = (AdvisedPlace(namespace="team", name="w", node="b"),)
    out = preemptor.send(m.Advised(Advice(sentence="", moves=moves, places=places)))
    (plan,) = [command.plan for command in out if isinstance(command, m.Propose)]
    (record,) = saved(out)
    assert [type(command) for command in out].index(m.SaveProtection) < [type(c) for c in out].index(m.Propose)
    return plan, record


def test_the_next_preemptor_knows_what_migrations_have_disturbed_in_the_last_hour() -> None:
    plan, record = proposing(FragmentedCluster(defragmentation_gpu_seconds_per_hour=20))
    assert record.disturbed == {plan.plan_id: (pytest.approx(NOW + 1), 11_000)}
    after = FragmentedCluster(defragmentation_gpu_seconds_per_hour=20)
    after.send(m.ProtectionRestored(record))
    after.waits()
    assert [question.most_gpu_seconds for question in after.asked()] == [9]
    assert after.advised() == []
    later = [q.most_gpu_seconds for _ in range(3) for q in after.asked(after_s=HOUR_S) if after.advised() == []]
    assert later[-1] == 20


def test_what_a_refused_plan_would_have_disturbed_is_given_back_to_the_next_preemptor_too() -> None:
    preemptor = FragmentedCluster(defragmentation_gpu_seconds_per_hour=20)
    plan, before = proposing(preemptor)
    (record,) = saved(preemptor.send(m.Answered(Reserved(plan_id=plan.plan_id, ok=False, reason="no"))))
    assert record.disturbed == {}
    preemptor.send(m.ProtectionRestored(before))  # it comes back late
    preemptor.now += 61
    assert [q.most_gpu_seconds for _ in range(12) for q in preemptor.asked()] == [20]


@pytest.mark.parametrize(("is_refused", "left"), [(False, 9), (True, 20)])
def test_an_instance_on_standby_follows_the_leader(is_refused: bool, left: int) -> None:
    _, record = proposing(FragmentedCluster(defragmentation_gpu_seconds_per_hour=20))
    standby = FragmentedCluster(defragmentation_gpu_seconds_per_hour=20)
    standby.send(m.Tick(proposes=False))
    standby.send(m.ProtectionRestored(record))
    if is_refused:
        standby.send(m.ProtectionRestored(Spared(owner=MIGRATIONS, namespace="")))
    standby.waits()
    assert [question.most_gpu_seconds for question in standby.asked()] == [left]


def test_what_migrations_have_disturbed_protects_no_pod() -> None:
    _, record = proposing(FragmentedCluster(defragmentation_gpu_seconds_per_hour=20))
    after = FragmentedCluster()
    after.send(m.ProtectionRestored(record))
    assert after.core.protection.count_protected(after.now) == 0


def test_protected_pods_are_named_in_the_question_and_not_migrated() -> None:
    preemptor = FragmentedCluster(protection_s=300, evictions_per_hour=0)
    preemptor.waits()
    preemptor.asked()
    (plan,) = preemptor.advised(Y)
    preemptor.reserve(plan)
    preemptor.gone("y")
    preemptor.send(m.Ended(plan.plan_id, executed=True))
    preemptor.run("y", "b", 1, owners=owned("y"))
    preemptor.waits("v")
    (question,) = preemptor.asked(after_s=3.0)
    assert question.protected_pods == (preemptor.pods["y"].metadata.uid,)
    assert preemptor.advised(Y, places=(("v", "b"),)) == []


@pytest.mark.parametrize(
    ("moves", "places"),
    [
        ((("y", "c", "a"),), (("w", "b"),)),
        ((("gone", "b", "a"),), (("w", "b"),)),
        ((("bare", "a", "b"),), (("w", "a"),)),
        ((("important", "a", "b"),), (("w", "a"),)),
        ((Y,), (("gone", "b"),)),
        ((Y,), ()),
    ],
    ids=[
        "it runs elsewhere by now",
        "it is gone",
        "it has no controller",
        "it has a higher priority",
        "the pending pod is gone",
        "there is no beneficiary",
    ],
)
def test_outdated_advice_migrates_no_pod(moves: Any, places: Any) -> None:
    preemptor = FragmentedCluster()
    preemptor.run("bare", "a", 1)
    preemptor.run("important", "a", 1, priority=50, owners=owned("important"))
    preemptor.waits()
    preemptor.asked()
    assert preemptor.advised(*moves, places=places) == []
    assert len(preemptor.asked(after_s=12.0)) == 1, "it is asked again"


def test_a_missing_answer_ends_the_question() -> None:
    preemptor = FragmentedCluster()
    preemptor.waits()
    preemptor.asked()
    assert preemptor.send(m.Advised(None)) == []
    assert len(preemptor.asked(after_s=12.0)) == 1


def test_a_pod_with_a_plan_in_progress_is_not_asked_about() -> None:
    preemptor = FragmentedCluster()
    preemptor.waits()
    preemptor.asked()
    assert len(preemptor.advised(Y)) == 1
    assert preemptor.advised(Y) == []
    assert [preemptor.asked() for _ in range(30)] == [[]] * 30


def test_a_gang_is_asked_about_once_and_gets_one_plan() -> None:
    preemptor = FragmentedCluster()
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    for name in ("g0", "g1"):
        preemptor.waits(name, gpus=1 if name == "g1" else 2, annotations=notes)
    (question,) = preemptor.asked()
    assert question.name in ("g0", "g1")
    (plan,) = preemptor.advised(Y, places=(("g0", "b"), ("g1", "a")))
    assert [(b.name, b.node) for b in plan.beneficiaries] == [("g0", "b"), ("g1", "a")]
