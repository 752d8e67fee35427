"""Which capacity queues reclaim from each other, and quotas."""

from __future__ import annotations

from services.preemptor import messages as m
from shared.contracts.facts import Put
from tests.support import build
from tests.support.harness.preemptor import Preemptor
from tests.unit.services.preemptor.planning.objects import budget


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
