"""Placement or the API server answers late or not at all: the same plan is proposed again, and fewer at once."""

from __future__ import annotations

import pytest

from services.preemptor import messages as m
from services.preemptor.core import MAX_PROPOSED_S, PROPOSE_AGAIN_S
from services.preemptor.plans.execution import ASK_AGAIN_S, NO_ANSWER_S
from services.preemptor.plans.window import FIRST, LATE_S
from shared.contracts.commands import Answer, Outcome
from shared.contracts.preemption import Plan, Reserved
from tests.support.harness.preemptor import Preemptor
from tests.unit.services.preemptor.test_core_rounds import put_budget


def _full(nodes: int, waiting: int, **settings: int) -> Preemptor:
    """Nodes of one GPU with a pod of low priority each, and pods of higher priority that want one each."""
    preemptor = Preemptor(*(f"n{i}" for i in range(nodes)), gpus=1, **settings)
    for i in range(nodes):
        preemptor.run(f"low-{i}", f"n{i}", 0, ran_s=100 + i)
    for i in range(waiting):
        preemptor.wait(f"high-{i}")
    return preemptor


def _unanswered(preemptor: Preemptor, plan: Plan) -> None:
    assert preemptor.send(m.Answered(Reserved(plan_id=plan.plan_id, ok=False, again=True))) == []


def _proposed_again(preemptor: Preemptor, after_s: float = PROPOSE_AGAIN_S) -> list[Plan]:
    preemptor.now += after_s
    return [command.plan for command in preemptor.send(m.Tick()) if isinstance(command, m.ProposeAgain)]


def test_an_unanswered_plan_is_proposed_again_and_no_other_is_made(preemptor: Preemptor) -> None:
    (plan,) = preemptor.plans()
    _unanswered(preemptor, plan)
    assert preemptor.plans(PROPOSE_AGAIN_S / 2) == []
    assert _proposed_again(preemptor) == [plan]
    assert _proposed_again(preemptor) == []  # an answer is awaited
    assert preemptor.reserve(plan) == ["cheap"]


def test_a_plan_that_is_never_answered_is_given_up_and_another_is_made(preemptor: Preemptor) -> None:
    (plan,) = preemptor.plans()
    began = preemptor.now
    while plan.plan_id in preemptor.core.executions:
        _unanswered(preemptor, plan)
        _proposed_again(preemptor, 10.0)
    assert MAX_PROPOSED_S < preemptor.now - began <= MAX_PROPOSED_S + 10.0
    (other,) = preemptor.plans()
    assert other.plan_id != plan.plan_id
    assert [victim.name for victim in other.victims] == ["cheap"]


def test_an_answer_after_a_plan_is_executed_changes_nothing(preemptor: Preemptor) -> None:
    """Two requests were under way, and the first one was answered late."""
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    _unanswered(preemptor, plan)
    assert _proposed_again(preemptor) == []


def test_fewer_plans_are_proposed_at_once_while_answers_are_missing() -> None:
    preemptor = _full(20, 20)
    plans = preemptor.plans()
    assert len(plans) == FIRST
    for plan in plans:
        _unanswered(preemptor, plan)
    assert _proposed_again(preemptor) == plans
    for plan in plans[2:]:
        preemptor.send(m.Ended(plan.plan_id, executed=True))
    assert preemptor.plans(0.1) == []  # two are left, and one is the limit
    preemptor.send(m.Ended(plans[1].plan_id, executed=True))
    preemptor.reserve(plans[0])
    preemptor.evicted(plans[0])
    assert len(preemptor.plans()) == 3  # it was answered twice, quickly


def test_more_are_proposed_as_answers_come_quickly() -> None:
    preemptor = _full(3 * FIRST, 3 * FIRST)
    for plan in preemptor.plans():
        preemptor.reserve(plan)
        preemptor.evicted(plan)
    assert len(preemptor.plans()) == 2 * FIRST


def _reserved_late() -> tuple[Preemptor, list[Plan]]:
    """The first plans of many, answered so late that no others may be proposed for it, and so early that none less."""
    preemptor = _full(3 * FIRST, 3 * FIRST)
    plans = preemptor.plans()
    preemptor.now += LATE_S
    for plan in plans:
        preemptor.reserve(plan)
    return preemptor, plans


def test_plans_whose_victims_are_still_to_be_evicted_count() -> None:
    """What was begun is finished before more pods are preempted."""
    preemptor, plans = _reserved_late()
    assert preemptor.plans(0.1) == []
    for plan in plans:
        preemptor.evicted(plan)
    assert len(preemptor.plans(0.1)) > 0


def test_a_late_answer_of_the_api_server_counts_too() -> None:
    preemptor, plans = _reserved_late()
    preemptor.now += LATE_S + 0.1
    for plan in plans[:3]:
        preemptor.evicted(plan)
    for plan in plans[3:]:
        preemptor.send(m.Ended(plan.plan_id, executed=True))
    assert len(preemptor.plans(0.1)) == 1


@pytest.mark.parametrize("most", [1, 3])
def test_there_are_never_more_than_the_setting_allows(most: int) -> None:
    assert len(_full(6, 6, max_plans=most).plans()) == most


@pytest.mark.parametrize("outcome", ["conflict", "throttled", "unknown"])
def test_any_answer_about_a_victim_that_is_gone_is_as_good_as_its_eviction(outcome: Outcome) -> None:
    """It is about the next pod of its name, which a StatefulSet has created, and may be under a budget."""
    preemptor = Preemptor("n", gpus=2)
    preemptor.run("web-0", "n", 0)
    preemptor.run("other", "n", 1)
    preemptor.wait("high", gpus=2)
    (plan,) = preemptor.plans()
    assert len(preemptor.reserve(plan)) == 2
    preemptor.evicted(plan, **{"web-0": "unknown"})
    preemptor.gone("web-0")
    preemptor.now += ASK_AGAIN_S
    (again,) = [c for c in preemptor.send(m.Tick()) if isinstance(c, m.Execute)]
    assert [order.name for order in again.evictions] == ["web-0"]
    uid = again.evictions[0].uid
    assert preemptor.send(m.Evicted(plan.plan_id, (uid,), (Answer(uid=uid, outcome=outcome),))) == []
    assert not preemptor.core.executions[plan.plan_id].victims_left


def test_a_victim_that_is_there_and_cannot_be_evicted_still_cancels_its_plan(preemptor: Preemptor) -> None:
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    uid = plan.victims[0].uid
    commands = preemptor.send(m.Evicted(plan.plan_id, (uid,), (Answer(uid=uid, outcome="conflict"),)))
    assert [type(command) for command in commands] == [m.CancelPlan]


def _follow(preemptor: Preemptor, after_s: float = 0.1) -> list[m.Command]:
    """Another instance leads."""
    preemptor.now += after_s
    return preemptor.send(m.Tick(proposes=False))


def test_an_instance_that_has_lost_the_lead_begins_no_eviction(preemptor: Preemptor) -> None:
    """And goes on where it leads again before the plan is over."""
    (plan,) = preemptor.plans()
    _follow(preemptor)
    assert preemptor.reserve(plan) == []
    assert _follow(preemptor, 2 * ASK_AGAIN_S) == []
    (execute,) = [c for c in preemptor.send(m.Tick()) if isinstance(c, m.Execute)]
    assert [order.name for order in execute.evictions] == ["cheap"]


def test_an_instance_that_has_lost_the_lead_repeats_no_eviction_and_no_proposal() -> None:
    preemptor = _full(2, 2)
    reserved, proposed = preemptor.plans()
    preemptor.reserve(reserved)
    _unanswered(preemptor, proposed)
    _follow(preemptor)
    preemptor.evicted(reserved, **{reserved.victims[0].name: "unknown"})
    assert _follow(preemptor, 2 * ASK_AGAIN_S) == []
    commands = preemptor.send(m.Tick())
    assert [type(c) for c in commands if not isinstance(c, m.SaveProtection)] == [m.Execute, m.ProposeAgain]


def test_an_instance_that_has_lost_the_lead_evicts_no_further_victim_and_cancels_no_plan() -> None:
    """The next leader may be executing it."""
    preemptor = Preemptor("n", gpus=2)
    put_budget(preemptor, 1)
    preemptor.run("first", "n", 0, labels={"app": "kept"})
    preemptor.run("then", "n", 1)
    preemptor.wait("high", gpus=2)
    (plan,) = preemptor.plans()
    assert preemptor.reserve(plan) == ["first"]
    _follow(preemptor)
    assert preemptor.evicted(plan, "first") == []
    uid = next(victim.uid for victim in plan.victims if victim.name == "then")
    assert preemptor.send(m.Evicted(plan.plan_id, (uid,), (Answer(uid=uid, outcome="throttled"),))) == []
    assert plan.plan_id in preemptor.core.executions


def _requests(preemptor: Preemptor, for_s: float) -> int:
    """How often evictions are requested in this time, by ticks of a second."""
    found = 0
    for _ in range(round(for_s)):
        preemptor.now += 1.0
        found += sum(isinstance(command, m.Execute) for command in preemptor.send(m.Tick()))
    return found


def test_no_eviction_is_requested_again_while_an_answer_is_awaited(preemptor: Preemptor) -> None:
    """The shell waits 15 s for it."""
    (plan,) = preemptor.plans()
    assert preemptor.reserve(plan) == ["cheap"]
    assert _requests(preemptor, 15) == 0
    preemptor.evicted(plan, cheap="unknown")
    assert _requests(preemptor, 15) == 1


def test_an_answer_that_never_comes_holds_up_no_plan_for_ever(preemptor: Preemptor) -> None:
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    assert _requests(preemptor, NO_ANSWER_S) == 1


@pytest.mark.parametrize("after_s", [0.1, 15.0])
def test_fewer_plans_are_proposed_at_once_while_answers_about_evictions_are_missing(after_s: float) -> None:
    """Also where the API server says at once that it cannot say."""
    preemptor, plans = _reserved_late()
    preemptor.now += after_s
    for plan in plans[:3]:
        preemptor.evicted(plan, **{victim.name: "unknown" for victim in plan.victims})
    for plan in plans:
        preemptor.send(m.Ended(plan.plan_id, executed=True))
    assert len(preemptor.plans(0.1)) == 1


def test_a_repeated_answer_about_evictions_opens_no_room_for_plans() -> None:
    preemptor, plans = _reserved_late()
    for _ in range(3):
        preemptor.evicted(plans[0])
    for plan in plans:
        preemptor.send(m.Ended(plan.plan_id, executed=True))
    assert len(preemptor.plans(0.1)) == FIRST + 1
