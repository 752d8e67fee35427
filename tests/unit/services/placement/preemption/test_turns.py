"""Plans that end turns: what placement refuses, what it orders when, and what a new leader does with them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import questions, reader
from shared.book import host_memory
from shared.contracts.commands import AnnounceEvent, TouchPod
from shared.contracts.events import PodResumed, PodSuspended, PreemptionAbandoned, PreemptionExecuted
from shared.contracts.log import ReadyRecord
from shared.contracts.preemption import Action, Beneficiary, Plan
from shared.contracts.queries import StatusQuery, WhenQuery, WhyQuery
from shared.model import names
from shared.model.objects import Container, PodStatus, Resources
from shared.model.suspension import Suspension, decode_suspension
from shared.turns.gpu_time import GpuTime, encode_gpu_time
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.harness.turns import GPU_MIB, STRATEGIES, Site, long_and_new, stamp


def test_a_pending_pod_gets_its_turn_when_the_node_has_confirmed_and_the_other_resumes_after_it() -> None:
    site = long_and_new()
    assert site.propose(site.plan(("long",), ("new",))).ok
    assert site.free_host() == 0, "counted from the reservation on"
    site.write()
    assert "uid-team-new" not in site.placement.binds(), "nothing is free before the node confirms"
    site.answer()
    site.bind("new")
    assert site.runs() == ["new"]
    record = site.record("long")
    assert (record.turns, record.attained_gpu_ms) == (1, pytest.approx(3_600_000, abs=5_000))
    site.settle(30)
    assert site.runs() == ["new"], "its capacity is taken"
    site.end("new")
    site.wait(7)
    site.write()
    assert site.free_host() == 0, "the node has not confirmed that all is back"
    site.answer()
    assert site.runs() == ["long"]
    assert site.free_host() == 1
    assert site.record("long").attained_gpu_ms == record.attained_gpu_ms, "it has not run meanwhile"


def two_take_turns() -> Site:
    """`long` is suspended, and `new` runs in its place long enough to be of a higher level than it."""
    site = long_and_new(park=2)
    site.propose(site.plan(("long",), ("new",)))
    site.settle()
    site.bind("new")
    site.wait(3 * 3_600)
    return site


def test_a_suspended_pod_resumes_by_a_plan_when_the_victims_are_suspended() -> None:
    site = two_take_turns()
    assert site.propose(site.plan(("new",), ("long",), plan_id="back")).ok
    site.write("new")
    site.wait(1)
    assert [o for o in site.unwritten if o.name == "long"] == [], "first the victim"
    site.answer()
    site.wait(1)
    assert [(o.name, o.suspension) for o in site.unwritten] == [("long", "")]
    assert site.placement.events(PreemptionExecuted)[-1].plan.plan_id == "turn", "not over before it is seen to resume"
    site.settle()
    assert site.runs() == ["long"]
    assert site.placement.events(PreemptionExecuted)[-1].plan.plan_id == "back"
    assert site.placement.core.preemption.reservations == {}
    assert site.placement.core.book.overbooked() == []


def test_no_other_pod_gets_what_is_reserved_for_a_resuming_one() -> None:
    site = two_take_turns()
    site.propose(site.plan(("new",), ("long",), plan_id="back"))
    site.create("other", priority=5)
    site.write("new")
    site.answer()
    site.settle(10)
    assert "uid-team-other" not in site.placement.binds()
    assert site.runs() == ["long"]


def test_a_pod_that_has_waited_too_long_begins_again_at_level_0() -> None:
    site = two_take_turns()
    site.wait(4 * 3_600)
    site.propose(site.plan(("new",), ("long",), plan_id="back"))
    site.settle(3)
    record = site.record("long")
    assert record.lifted_at_gpu_ms == record.attained_gpu_ms > 0


def test_a_pod_whose_resumption_came_too_late_goes_on_waiting() -> None:
    site = two_take_turns()
    stopped = site.record("long")
    pod = site.api["uid-team-long"]
    notes = {k: v for k, v in pod.metadata.annotations.items() if k != names.ANNOTATION_SUSPENDED}
    resumed = GpuTime(since=site.wall, attained_gpu_ms=stopped.attained_gpu_ms, turns=stopped.turns)
    site.show(build.newer(pod, annotations=notes | {names.ANNOTATION_GPU_TIME: encode_gpu_time(resumed)}))
    site.write()
    assert site.runs() == ["new"]
    assert site.record("long") == stopped


def test_the_status_names_who_is_suspended_and_what_the_hosts_hold() -> None:
    site = long_and_new()
    site.propose(site.plan(("long",), ("new",)))
    site.settle(3)
    site.bind("new")
    site.wait(60)
    status = reader.status(
        site.placement.core, StatusQuery(suspended=5), leader=True, now=site.placement.now, wall=site.wall
    )
    assert (status.pods_suspended, status.on_host_mib, status.host_mib) == (1, GPU_MIB, GPU_MIB)
    (long,) = status.suspended
    record = site.record("long")
    assert (long.name, long.action, long.turn_of, long.level) == ("long", "checkpoint", "team/new", 1)
    assert (long.since, long.gpu_seconds) == (stamp(record.since), record.attained_gpu_ms // 1000)
    assert long.for_s >= 60
    none_named = reader.status(site.placement.core, StatusQuery(), leader=True, wall=site.wall)
    assert (none_named.pods_suspended, none_named.suspended) == (1, ())


def gangs_take_turns() -> Site:
    site = Site(gpus=2, park=4)
    for name in ("a0", "a1"):
        site.create(name, gang="a")
    site.bind("a0", "a1")
    site.wait(1_200)
    for name in ("b0", "b1"):
        site.create(name, gang="b")
    return site


def test_gangs_take_turns_as_a_whole_and_resume_together() -> None:
    site = gangs_take_turns()
    assert "is no victim" in site.propose(site.plan(("a0",), ("b0", "b1"))).reason
    assert site.propose(site.plan(("a0", "a1"), ("b0", "b1"))).ok
    site.settle()
    site.bind("b0", "b1")
    site.settle(10)
    assert site.runs() == ["b0", "b1"]
    site.end("b0")
    site.settle(20)
    assert site.runs() == ["b1"], "half a gang does not resume"
    site.end("b1")
    site.wait(7)
    assert sorted(o.name for o in site.unwritten) == ["a0", "a1"]
    site.settle()
    assert site.runs() == ["a0", "a1"]


def gang_is_away(away_s: int) -> Site:
    """Gang a is suspended for so long, for the turn of gang b. It has had more than b."""
    site = gangs_take_turns()
    assert site.propose(site.plan(("a0", "a1"), ("b0", "b1"))).ok
    site.settle()
    site.bind("b0", "b1")
    site.settle(20)
    record = site.record("a0")
    site.wait(away_s - round(site.wall - record.since))
    return site


def test_a_host_keeps_room_for_those_that_yield_when_a_gang_comes_back() -> None:
    """Without it the gang would wait on a full host until its watchdog ends it."""
    site = gangs_take_turns()
    site.park(3)
    refused = site.propose(site.plan(("a0", "a1"), ("b0", "b1")))
    assert "with what jobs need that come back for their watchdogs" in refused.reason
    site.park(4)
    assert site.propose(site.plan(("a0", "a1"), ("b0", "b1"))).ok
    site.settle()
    site.bind("b0", "b1")
    site.wait(400)
    assert site.free_host() == 2, "as much as gang b needs"
    assert site.propose(site.plan(("b0", "b1"), ("a0", "a1"), plan_id="back")).ok


def test_why_and_when_tell_the_bound_of_a_watchdog() -> None:
    site = gang_is_away(100)
    told = finish(questions.when_(site.placement.core, WhenQuery(namespace="team", name="a0"), site.wall)).when
    assert told is not None
    assert told.turn is not None
    assert (told.turn.watchdog_s, told.turn.within_s) == (600, pytest.approx(600 - 2 * 120 - 100 + 120, abs=2))
    assert "It is suspended for 10 min at most, for its watchdog" in told.sentence


@pytest.mark.parametrize(
    ("away_s", "late"), [(400, ""), (700, "it has waited for 700 s, 100 s longer than its watchdog bears")]
)
def test_a_job_that_comes_back_for_its_watchdog_keeps_its_level_and_says_if_it_is_late(away_s: int, late: str) -> None:
    early = gang_is_away(350)
    assert "its turn goes on" in early.propose(early.plan(("b0", "b1"), ("a0", "a1"), plan_id="back")).reason
    site = gang_is_away(away_s)
    assert site.propose(site.plan(("b0", "b1"), ("a0", "a1"), plan_id="back")).ok
    site.write()
    site.answer()
    says = [order.reason for order in site.unwritten if not order.suspension]
    assert len(says) == 2
    assert all(("longer than its watchdog bears" in one) is bool(late) and late in one for one in says)
    site.settle(3)
    assert site.runs() == ["a0", "a1"]
    assert site.record("a0").lifted_at_gpu_ms == 0


def test_a_gang_resumes_by_a_plan_as_a_whole() -> None:
    site = gangs_take_turns()
    site.park_mib *= 2
    site.send(m.InventorySeen(build.inventory("n", gpus=2, strategies=STRATEGIES, park_mib=4 * GPU_MIB, generation=2)))
    site.propose(site.plan(("a0", "a1"), ("b0", "b1")))
    site.settle()
    site.bind("b0", "b1")
    site.wait(3 * 3_600)
    refused = site.propose(site.plan(("b0", "b1"), ("a0",), plan_id="back"))
    assert "a1 is no beneficiary" in refused.reason
    assert site.propose(site.plan(("b0", "b1"), ("a0", "a1"), plan_id="back")).ok
    site.write("b0")
    site.answer()
    site.wait(8)
    assert [o.name for o in site.unwritten if not o.suspension] == []
    site.write("b1")
    site.answer()
    site.wait(1)
    assert sorted(o.name for o in site.unwritten if not o.suspension) == ["a0", "a1"]
    site.settle(2)
    assert site.runs() == ["a0", "a1"]


@pytest.mark.parametrize("crash", ["logged", "ordered", "written", "confirmed", "resumed in part"])
def test_a_new_leader_finishes_a_gang_that_resumes(crash: str) -> None:
    site = gangs_take_turns()
    site.park_mib *= 2
    site.send(m.InventorySeen(build.inventory("n", gpus=2, strategies=STRATEGIES, park_mib=4 * GPU_MIB, generation=2)))
    site.propose(site.plan(("a0", "a1"), ("b0", "b1")))
    site.settle()
    site.bind("b0", "b1")
    site.wait(3 * 3_600)
    site.propose(site.plan(("b0", "b1"), ("a0", "a1"), plan_id="back"))
    match crash:
        case "logged":
            site.unwritten.clear()
        case "written":
            site.write("b0")
        case "confirmed":
            site.write()
            site.answer()
            site.unwritten.clear()
        case "resumed in part":
            site.write()
            site.answer()
            site.wait(1)
            site.write("a0")
            site.unwritten.clear()
    site.new_leader()
    site.settle(20)
    assert site.runs() == ["a0", "a1"]
    assert site.placement.core.preemption.reservations == {}
    assert site.placement.core.book.overbooked() == []
    assert host_memory.overbooked(site.placement.core.book) == []


@pytest.fixture
def held() -> Site:
    """A turn of two gangs is logged, and its node has been asked to hold the one that runs."""
    site = gangs_take_turns()
    site.answers_holds = False
    site.propose(site.plan(("a0", "a1"), ("b0", "b1")))
    return site


def test_a_gang_is_checkpointed_when_all_of_its_members_stand_still(held: Site) -> None:
    (asked,) = held.holds
    assert asked.hold.grant_ids == tuple(held.state(name).grant_id for name in ("a0", "a1"))
    held.settle(20)
    assert (held.unwritten, held.runs(), held.holds) == ([], ["a0", "a1"], [asked])
    held.hold_answered(asked)
    assert sorted(order.name for order in held.unwritten) == ["a0", "a1"]
    held.settle(20)
    assert held.runs() == []
    assert held.holds == [asked], "what is checkpointed is not told to go on"


def test_a_gang_that_does_not_stand_still_goes_on_and_is_asked_again_a_moment_later(held: Site) -> None:
    held.hold_answered(held.holds[0], reason="one of its processes computes")
    assert [order.hold.hold_s for order in held.holds] == [60, 0]
    held.wait(1)
    assert [order.hold.hold_s for order in held.holds] == [60, 0, 60]
    held.hold_answered(held.holds[0])
    assert held.unwritten == [], "an answer to the earlier attempt"
    held.hold_answered(held.holds[2])
    assert len(held.unwritten) == 2


def test_a_gang_that_never_stands_still_ends_the_plan_and_runs_on(held: Site) -> None:
    for attempt in range(6):
        assert held.holds[-1].hold.hold_s == 60
        assert not held.placement.events(PreemptionAbandoned), attempt
        held.hold_answered(held.holds[-1], reason="one of its processes computes")
        held.wait(2)
    abandoned = held.placement.events(PreemptionAbandoned)[-1]
    assert "could not be stopped together in 6 attempts; node n: one of its processes computes" in abandoned.reason
    assert sorted(abandoned.failed) == ["uid-team-a0", "uid-team-a1"]
    held.settle(20)
    assert (held.runs(), held.free_host(), held.holds[-1].hold.hold_s) == (["a0", "a1"], 4, 0)
    held.hold_answered(held.holds[-2])
    assert held.unwritten == [], "the plan is over"


def test_a_plan_that_ends_while_its_gang_is_held_lets_it_go_on(held: Site) -> None:
    held.wait(70)
    assert held.placement.events(PreemptionAbandoned)
    assert [order.hold.hold_s for order in held.holds] == [60, 0]
    held.hold_answered(held.holds[0])
    held.settle(10)
    assert (held.runs(), held.free_host()) == (["a0", "a1"], 4)


def test_a_new_leader_asks_for_the_members_that_run_alone(held: Site) -> None:
    held.hold_answered(held.holds[0])
    held.write("a0")
    held.unwritten.clear()
    held.new_leader()
    held.wait(1)
    assert held.holds[-1].hold.grant_ids == (held.state("a1").grant_id,)
    held.hold_answered(held.holds[-1])
    held.settle(20)
    assert held.runs() == []


def test_a_pod_alone_is_not_held_before() -> None:
    site = long_and_new()
    site.answers_holds = False
    site.propose(site.plan(("long",), ("new",)))
    assert (site.holds, [order.name for order in site.unwritten]) == ([], ["long"])


def test_a_refused_suspension_ends_the_plan_and_all_run_again() -> None:
    site = gangs_take_turns()
    site.propose(site.plan(("a0", "a1"), ("b0", "b1")))
    site.write("a0")
    site.answer()
    site.write("a1")
    site.answer(reason="a process cannot be checkpointed")
    abandoned = site.placement.events(PreemptionAbandoned)[-1]
    assert "cannot be checkpointed" in abandoned.reason
    assert abandoned.failed == ("uid-team-a1",)
    site.settle(20)
    assert site.runs() == ["a0", "a1"]
    assert site.free_host() == 4


def test_a_plan_that_is_not_done_by_its_deadline_is_given_up() -> None:
    site = long_and_new()
    site.propose(site.plan(("long",), ("new",)))
    site.write()
    site.wait(70)
    assert [event.failed for event in site.placement.events(PreemptionAbandoned)] == [("uid-team-long",)]
    site.answer()
    site.settle(10)
    assert site.runs() == ["long"]
    assert site.free_host() == 1


def test_after_a_deadline_only_what_was_not_suspended_has_failed() -> None:
    site = gangs_take_turns()
    site.propose(site.plan(("a0", "a1"), ("b0", "b1")))
    site.write("a0")
    site.answer()
    site.write("a1")
    site.wait(70)
    assert [event.failed for event in site.placement.events(PreemptionAbandoned)] == [("uid-team-a1",)]


def test_a_plan_that_was_given_up_keeps_its_host_memory_until_its_order_cannot_be_written_any_more() -> None:
    site = long_and_new()
    site.propose(site.plan(("long",), ("new",)))
    late = list(site.unwritten)
    site.send(m.AbandonAsked("turn", "no more"))
    assert site.placement.events(PreemptionAbandoned)
    site.wait(20)
    site.answer()
    assert (site.free_host(), list(site.placement.core.preemption.reservations)) == (0, ["turn"])
    touches = [p for p in site.placement.patches() if isinstance(p, TouchPod)]
    assert [touch.uid for touch in touches][:1] == ["uid-team-long"], "it is moved, so that this ends"
    site.unwritten.clear()
    site.show(build.newer(site.api["uid-team-long"]))
    assert site.placement.core.preemption.reservations == {}
    site.settle(12)
    assert site.free_host() == 1
    site.unwritten = late
    site.write()
    assert site.runs() == ["long"]


@pytest.mark.parametrize("by_a_new_leader", [False, True])
def test_a_suspended_member_of_a_gang_that_has_ended_resumes_no_more(by_a_new_leader: bool) -> None:
    """Its annotation stays on it for as long as its object exists."""
    site = Site(park=4)
    for name in ("a", "b"):
        site.create(name, gang="g")
    site.bind("a", "b")
    site.wait(3_600)
    site.create("new")
    site.propose(site.plan(("a", "b"), ("new",)))
    site.settle(3)
    site.bind("new")
    assert site.runs() == ["new"]
    site.show(build.newer(site.api["uid-team-b"], phase="Failed"))
    site.end("new")
    if by_a_new_leader:
        site.new_leader()
    site.settle(20)
    assert site.runs() == ["a"]


def test_an_order_that_is_refused_as_such_withdraws_no_suspension() -> None:
    """A leader whose log has lost its newest terms orders by an old one, until it knows. What the pod gave up others
    have by now."""
    site = long_and_new()
    site.propose(site.plan(("long",), ("new",)))
    site.write()
    for command in site.unanswered:
        refused = m.GrantAcknowledged("n", command.grant.grant.grant_id, ok=False, reason="term 1 is over")
        site.send(refused)
    assert site.unwritten == []
    assert not site.placement.events(PreemptionAbandoned)
    site.answer()
    assert names.ANNOTATION_SUSPENDED in site.api["uid-team-long"].metadata.annotations


def test_a_plan_that_was_given_up_keeps_no_place_and_no_pod_waiting_for_another_plan() -> None:
    """Its victim may be a pod that no order can change, for weeks."""
    site = Site(gpus=2, park=2)
    site.run("long")
    site.run("other")
    site.wait(3_600)
    site.create("new")
    site.propose(site.plan(("long",), ("new",)))
    site.unwritten.clear()
    site.send(m.AbandonAsked("turn", "no more"))
    book, open_plans = site.placement.core.book, site.placement.core.preemption.reservations
    assert (list(open_plans), site.free_host()) == (["turn"], 1)
    assert not any(held.phase == "reserved" for held in book.grants.values())
    assert site.propose(site.plan(("other",), ("new",), plan_id="next")).ok


def test_no_leader_goes_on_with_a_plan_that_was_given_up() -> None:
    site = long_and_new()
    site.propose(site.plan(("long",), ("new",)))
    site.send(m.AbandonAsked("turn", "no more"))
    site.unwritten.clear()
    for _ in range(2):  # each writes into the log what it takes over
        site.new_leader()
        (found,) = site.placement.core.preemption.reservations.values()
        assert (found.closing, found.placeholders, site.free_host()) == (True, [], 0)
    site.unwritten.clear()
    site.show(build.newer(site.api["uid-team-long"]))
    site.settle(12)
    assert (site.free_host(), site.runs()) == (1, ["long"])


def test_a_leader_that_does_not_trust_the_log_gives_its_plans_up() -> None:
    """The next one trusts the log again, and would go on with a plan that nobody knows any more. The log keeps a day,
    so it may have a plan and no `ready`."""
    site = long_and_new()
    site.propose(site.plan(("long",), ("new",)))
    site.unwritten.clear()
    site.placement.log = [record for record in site.placement.log if not isinstance(record[1], ReadyRecord)]
    site.new_leader()
    assert site.placement.core.phase == "touching"
    assert site.placement.events(PreemptionAbandoned)
    for uid in ("uid-team-long", "uid-team-new"):
        site.show(build.newer(site.api[uid]))
    site.settle(12)
    assert site.placement.core.phase == "leading"
    assert site.placement.core.preemption.reservations == {}
    site.new_leader()
    assert (site.placement.core.phase, site.placement.core.preemption.reservations) == ("leading", {})


def test_an_order_that_is_written_after_its_plan_was_given_up_suspends_and_resumes_the_pod() -> None:
    site = long_and_new()
    site.propose(site.plan(("long",), ("new",)))
    site.placement.gone(site.api.pop("uid-team-new"))
    site.settle(2)
    assert site.runs() == []
    site.settle(10)
    assert site.runs() == ["long"]
    assert site.free_host() == 1


def test_a_new_leader_keeps_the_host_memory_of_a_plan_whose_pod_is_gone() -> None:
    site = long_and_new()
    site.propose(site.plan(("long",), ("new",)))
    late = list(site.unwritten)
    del site.api["uid-team-new"]
    site.new_leader()
    assert site.free_host() == 0
    site.unwritten = late
    site.settle(15)
    assert site.runs() == ["long"]
    assert (site.free_host(), site.placement.core.preemption.reservations) == (1, {})


def test_an_answer_to_the_same_plans_order_before_it_was_withdrawn_books_nothing() -> None:
    site = long_and_new()
    site.propose(site.plan(("long",), ("new",)))
    site.write()
    (first,) = [c for c in site.unanswered if c.grant.suspension is not None]
    pod = site.api["uid-team-long"]
    notes = {k: v for k, v in pod.metadata.annotations.items() if k != names.ANNOTATION_SUSPENDED}
    site.show(build.newer(pod, annotations=notes))  # by a late order of an earlier leader
    site.wait(6)
    site.write()
    grant = first.grant.grant.grant_id
    site.send(m.GrantAcknowledged("n", grant, suspension=first.grant.suspension, number=first.grant.number))
    assert "uid-team-new" not in site.placement.binds()
    site.answer()
    assert "uid-team-new" in site.placement.binds()


def test_an_answer_to_an_earlier_order_frees_no_host_memory() -> None:
    site = two_take_turns()
    number = site.placement.core.nodes.node_grant(
        site.placement.core.book.grants[site.state("long").grant_id], "n"
    ).number
    site.end("new")
    site.wait(7)
    site.write()
    site.send(m.GrantAcknowledged("n", site.state("long").grant_id, number=number, whole=True))
    assert site.free_host() == 1
    site.answer()
    assert site.free_host() == 2


@pytest.mark.parametrize("by_a_new_leader", [False, True])
def test_host_memory_of_a_pod_that_is_back_is_free_though_the_pod_is_paused_again(by_a_new_leader: bool) -> None:
    """Its node told that all is on the GPU when the pod was to stand still already; a new leader's sync was answered
    before."""
    site = Site(gpus=1, park=1, memory=f"{GPU_MIB // 2}Mi")
    site.run("long")
    site.wait(3_600)
    site.create("new")
    site.propose(site.plan(("long",), ("new",)))
    site.settle()
    site.bind("new")
    site.end("new")
    site.wait(7)
    site.write()
    site.wait(3_600)
    site.unanswered.clear()
    site.create("newer")
    assert site.propose(site.plan(("long",), ("newer",), action="pause", plan_id="next")).ok
    site.write()
    if by_a_new_leader:
        site.new_leader()
    assert site.free_host() == 0, "the node has not answered"
    site.settle(7)
    assert site.state("long").suspension is not None
    assert site.free_host() == 1


def test_a_full_host_refuses_a_checkpoint_and_allows_a_pause() -> None:
    site = Site(gpus=1, park=0, memory=f"{GPU_MIB // 2}Mi")
    site.run("long")
    site.wait(3_600)
    site.create("new")
    refused = site.propose(site.plan(("long",), ("new",)))
    assert "0 MiB free for checkpointed GPU memory" in refused.reason
    assert site.propose(site.plan(("long",), ("new",), action="pause")).ok


def test_a_pending_pod_whose_turn_comes_first_is_tried_before_a_suspended_one_resumes() -> None:
    site = long_and_new(park=2)
    site.propose(site.plan(("long",), ("new",)))
    site.settle()
    site.bind("new")
    site.create("newer")
    site.end("new")
    site.settle()
    assert "uid-team-newer" in site.placement.binds(), "it has had no GPU time yet"
    site.bind("newer")
    site.wait(7 * 3_600)
    site.create("newest")
    site.end("newer")
    site.settle()
    assert "uid-team-newest" not in site.placement.binds()
    assert site.runs() == ["long"], "it has waited too long"


@pytest.mark.parametrize("action", ["evict", "throttle"])
def test_a_turn_never_ends_otherwise(action: Action) -> None:
    site = long_and_new()
    assert f"not by {action}" in site.propose(site.plan(("long",), ("new",), action=action)).reason


def test_a_turn_is_not_ended_for_a_pod_that_is_not_suspended() -> None:
    site = long_and_new()
    plan = site.plan(("long",), ("new",))
    resumes = msgspec.structs.replace(plan.beneficiaries[0], resumes=True)
    wrong = msgspec.structs.replace(plan, beneficiaries=(resumes,))
    assert site.propose(wrong).reason == "team/new is not suspended"


def test_the_order_says_for_whose_turn_it_is() -> None:
    site = long_and_new()
    site.propose(site.plan(("long",), ("new",)))
    (order,) = site.unwritten
    assert decode_suspension(order.suspension) == Suspension(action="checkpoint", plan_id="turn")
    assert "it is the turn of team/new; it has run for 3600 s and has had 3600 GPU-seconds (level 1)" in order.reason
    (started,) = [p for p in site.placement.patches() if getattr(p, "reason", "") == "PreemptionStarted"]
    assert isinstance(started, AnnounceEvent)
    assert "it is the turn of it, which gets a place on n when these are suspended: " in started.note
    site.write()
    assert site.record("long").turn_of == "team/new"


def test_why_and_when_tell_the_turns() -> None:
    site = long_and_new()
    site.propose(site.plan(("long",), ("new",)))
    site.settle()
    site.bind("new")
    site.wait(600)
    core = site.placement.core
    told = finish(questions.when_(core, WhenQuery(namespace="team", name="long"), site.wall)).when
    assert told is not None
    assert told.turn is not None
    assert (told.state, told.turn.turn_of, told.turn.before, told.turn.level) == ("turn", "team/new", 0, 1)
    assert told.in_s == told.turn.within_s == pytest.approx(21_600 - 600 + 120, abs=5)
    query = WhyQuery(namespace="team", name="long")
    why = finish(questions.why(core, query, site.placement.now, site.wall)).explanation
    assert why is not None
    assert "suspended for the turn of team/new since" in why.sentence
    assert "it has had 60 min of GPU time (level 1, once suspended)" in why.sentence
    assert "its next turn comes within 5 h 51 min" in why.sentence
    site.create("older")
    site.wait(6 * 3_600)
    site.create("newest")
    late = finish(questions.when_(core, WhenQuery(namespace="team", name="older"), site.wall)).when
    assert late is not None
    assert late.turn is not None
    assert (late.turn.overdue, late.turn.before, late.turn.within_s) == (True, 1, 240), (
        "after `long`, which waits longer"
    )


@pytest.mark.parametrize(("text", "expected"), [("turns: allowed", "interposer"), ("weight: 1", "exclusive")])
def test_a_whole_gpu_of_a_pod_whose_queue_takes_turns_is_a_slice_that_can_be_suspended(
    text: str, expected: str
) -> None:
    """Only such a slice can be paused or checkpointed; a GPU of strategy `exclusive` cannot."""
    placement = Placement()
    placement.facts(build.queues(f"queues: [{{name: team, {text}}}]"), build.node("n"))
    placement.send(m.InventorySeen(build.inventory("n", gpus=1, strategies=STRATEGIES)))
    placement.facts(build.pod("p", labels={names.LABEL_QUEUE: "team"}, limits={names.RESOURCE_GPU: "1"}))
    (held,) = placement.core.book.grants.values()
    assert [part.strategy for part in held.given.containers.values()] == [expected]


def test_pods_with_whole_gpus_take_turns() -> None:
    """A GPU is given as a whole when it is idle: one whose pod has all of its memory on the host is."""
    site = Site(gpus=1, park=2)
    whole = {names.ANNOTATION_TURNS: "allowed"}
    for name in ("long", "new"):
        limits = {names.RESOURCE_GPU: "1"}
        site.show(build.pod(name, limits=limits, annotations=whole, created=stamp(site.wall)))
        if name == "long":
            site.bind("long")
            site.wait(3_600)
    assert site.propose(site.plan(("long",), ("new",))).ok
    site.write()
    assert "uid-team-new" not in site.placement.binds(), "nothing is free before the node confirms"
    site.settle()
    site.bind("new")
    assert site.runs() == ["new"]
    site.wait(3 * 3_600)
    assert site.propose(site.plan(("new",), ("long",), plan_id="back")).ok
    site.settle(5)
    assert site.runs() == ["long"]
    site.show(build.pod("third", limits={names.RESOURCE_GPU: "1"}, created=stamp(site.wall)))
    site.settle(5)
    assert "uid-team-third" not in site.placement.binds(), "the GPU has a pod again"
    assert site.placement.core.book.overbooked() == []


def test_a_program_that_cannot_be_checkpointed_is_not_asked_for_again() -> None:
    site = long_and_new()
    grant = site.state("long").grant_id
    why = "CUDA error 801"
    site.cannot = {grant: why}
    site.propose(site.plan(("long",), ("new",)))
    site.write()
    (order,) = [c.grant for c in site.unanswered if c.grant.suspension is not None]
    site.unanswered.clear()
    said = {"reason": f"it cannot be checkpointed: {why}", "number": order.number, "cannot_checkpoint": why}
    site.send(m.GrantAcknowledged("n", grant, **said))
    site.settle(20)
    assert site.runs() == ["long"]
    answer = site.propose(site.plan(("long",), ("new",), plan_id="again"))
    assert (answer.ok, answer.cannot_suspend) == (False, ("uid-team-long",))
    assert why in answer.reason
    assert site.placement.core.preemption.reservations == {}
    site.send(m.GrantAcknowledged("n", grant, whole=True, number=order.number))
    site.wait(130)
    assert site.propose(site.plan(("long",), ("new",), plan_id="restarted")).ok, "its node says so no more"


def test_a_new_leader_learns_by_the_sync_what_cannot_be_checkpointed() -> None:
    site = long_and_new()
    grant = site.state("long").grant_id
    site.cannot = {grant: "CUDA error 801"}
    site.new_leader()
    site.wait(2)
    assert site.propose(site.plan(("long",), ("new",))).cannot_suspend == ("uid-team-long",)


@pytest.mark.parametrize(("turns", "rehearses"), [("turns: allowed", True), ("turns: never", False)])
def test_a_pod_that_takes_turns_by_its_queue_is_rehearsed(turns: str, rehearses: bool) -> None:
    site = Site()
    site.placement.facts(build.queues(f"queues: [{{name: q, {turns}}}]"))
    limits = {names.RESOURCE_GPU_MEMORY: f"{GPU_MIB}Mi", names.RESOURCE_SLOT: "1"}
    site.show(build.pod("p", limits=limits, labels={names.LABEL_QUEUE: "q"}))
    bound = site.placement.bind(site.api["uid-team-p"])
    site.show(build.newer(bound))
    terms = site.unanswered[-1].grant.turns
    assert (terms is not None and terms.rehearse) is rehearses


def test_two_containers_on_one_gpu_resume_only_where_both_fit() -> None:
    """Each of their shares fits beside the one that stays, and both do not."""
    site = Site(gpus=1, park=3, memory=f"{GPU_MIB // 2}Mi")
    part = {names.RESOURCE_GPU_MEMORY: f"{GPU_MIB // 4}Mi", names.RESOURCE_GPU_COMPUTE: "40"}
    both = tuple(Container(name=c, resources=Resources(limits=part)) for c in ("a", "b"))
    notes = {names.ANNOTATION_TURNS: "allowed", names.ANNOTATION_ISOLATION: "firm"}
    site.show(build.pod("two", containers=both, annotations=notes, created=stamp(site.wall)))
    site.bind("two")
    site.wait(3_600)
    for name in ("x", "y"):
        site.create(name, compute=50)
    assert site.propose(site.plan(("two",), ("x",))).ok
    site.settle()
    site.bind("x", "y")
    site.wait(5 * 3_600)
    answer = site.propose(site.plan(("x",), ("two",), plan_id="back"))
    assert (answer.ok, answer.reason) == (False, "the beneficiaries would not fit even without the victims")


def test_a_pod_that_resumes_by_a_plan_is_no_victim_of_another() -> None:
    """Else that one would give away what this one gives back."""
    site = two_take_turns()
    site.placement.facts(build.node("m"))
    site.create("other", priority=5)
    assert site.propose(site.plan(("new",), ("long",), plan_id="back")).ok
    plan = site.plan(("long",), ("other",), action="evict", plan_id="priority")
    elsewhere = tuple(msgspec.structs.replace(b, node="m") for b in plan.beneficiaries)
    plan = msgspec.structs.replace(plan, turn=False, beneficiaries=elsewhere)
    assert site.propose(plan).reason == "team/long resumes by another plan"


def test_a_new_leader_gives_a_plan_up_one_of_whose_victims_has_ended() -> None:
    """Nothing moves the version of a pod that has ended, so that would be waited for in vain."""
    site = gangs_take_turns()
    site.propose(site.plan(("a0", "a1"), ("b0", "b1")))
    site.write("a0")
    grant = site.state("a0").grant_id
    site.show(msgspec.structs.replace(build.newer(site.api["uid-team-a0"]), status=PodStatus(phase="Succeeded")))
    site.has.pop(grant, None)
    site.new_leader(touched=False)
    site.send(m.ReleaseSeen("n", grant))
    site.wait(70)
    assert site.placement.events(PreemptionAbandoned)
    site.settle(10)
    assert site.placement.core.preemption.reservations == {}


# --- idle jobs ------------------------------------------------------------------------------------------------------


def idle_gives_way() -> Site:
    """A notebook that was idle after a minute is suspended; `new` has had the GPU and has ended."""
    site = Site(gpus=1)
    site.run("notebook")
    site.wait(60)
    site.create("new")
    assert "its turn goes on" in site.propose(site.plan(("notebook",), ("new",), plan_id="early")).reason
    site.say_idle("notebook")
    assert site.propose(site.plan(("notebook",), ("new",))).ok
    site.settle()
    site.bind("new")
    return site


def test_an_idle_pod_is_suspended_at_once_and_resumes_when_it_wants_the_gpu() -> None:
    site = idle_gives_way()
    site.end("new")
    site.settle(600)
    assert site.runs() == [], "nobody wants the GPU"
    site.say_idle(woken=("notebook",))
    site.settle(10)
    assert site.runs() == ["notebook"]


def test_the_event_the_status_why_and_when_say_that_a_pod_is_idle() -> None:
    site = Site(gpus=1)
    site.run("notebook")
    site.wait(60)
    site.create("new")
    site.say_idle("notebook")
    core = site.placement.core
    asked = WhyQuery(namespace="team", name="notebook")
    why = finish(questions.why(core, asked, site.placement.now, site.wall)).explanation
    assert why is not None
    assert "is idle: its turn ends for any other job" in why.sentence
    site.propose(site.plan(("notebook",), ("new",)))
    site.wait(1)
    [order] = site.unwritten
    assert order.reason.startswith("checkpointed to host memory while idle: it is the turn of team/new")
    assert "it resumes when it wants the GPU, in its turn" in order.reason
    site.settle()
    site.bind("new")
    status = reader.status(core, StatusQuery(suspended=5), leader=True, now=site.placement.now, wall=site.wall)
    assert [one.idle for one in status.suspended] == [True]
    when = finish(questions.when_(core, WhenQuery(namespace="team", name="notebook"), site.wall)).when
    assert when.sentence.startswith("when it wants the GPU, in its turn; it takes turns: idle, and suspended since")
    assert (when.in_s, when.at) == (21_600 + 120, ""), "from that moment on, which nothing tells"
    site.say_idle(woken=("notebook",))
    when = finish(questions.when_(core, WhenQuery(namespace="team", name="notebook"), site.wall)).when
    assert when.sentence.startswith("in its next turn")


def test_an_idle_gang_resumes_as_a_whole_when_one_pod_wants_the_gpu() -> None:
    site = gangs_take_turns()
    site.say_idle("a0", "a1")
    site.propose(site.plan(("a0", "a1"), ("b0", "b1")))
    site.settle()
    site.bind("b0", "b1")
    for name in ("b0", "b1"):
        site.end(name)
    site.settle(30)
    assert site.runs() == []
    site.say_idle("a0", woken=("a1",))
    site.settle(10)
    assert site.runs() == ["a0", "a1"]


# --- public events --------------------------------------------------------------------------------------------------


def test_events_say_that_a_pod_is_suspended_and_when_it_has_all_back() -> None:
    site = long_and_new()
    site.propose(site.plan(("long",), ("new",)))
    site.write()
    assert site.placement.events(PodSuspended) == [], "its node has not said so"
    site.answer()
    [suspended] = site.placement.events(PodSuspended)
    assert (suspended.name, suspended.action, suspended.plan_id) == ("long", "checkpoint", "turn")
    assert (suspended.turn_of, suspended.idle) == ("team/new", False)
    assert suspended.gpu_seconds == pytest.approx(3_600, abs=5)
    site.bind("new")
    site.wait(100)
    site.end("new")
    site.wait(7)
    site.write()
    assert site.placement.events(PodResumed) == [], "its memory is not back yet"
    site.answer()
    [resumed] = site.placement.events(PodResumed)
    assert (resumed.name, resumed.action, resumed.moved) == ("long", "checkpoint", False)
    assert resumed.suspended_ms == pytest.approx(108_000, abs=3_000)


def test_an_answer_to_an_earlier_order_is_no_resumption() -> None:
    site = long_and_new()
    grant = site.state("long").grant_id
    site.propose(site.plan(("long",), ("new",)))
    site.settle(2)
    site.bind("new")
    site.end("new")
    site.wait(7)
    site.write()
    site.send(m.GrantAcknowledged("n", grant, number=1, whole=True))
    assert site.placement.events(PodResumed) == []
    site.answer()
    assert [one.name for one in site.placement.events(PodResumed)] == ["long"]


def test_a_new_leader_says_again_who_is_suspended_and_how_long_it_was() -> None:
    site = long_and_new()
    site.propose(site.plan(("long",), ("new",)))
    site.settle(2)
    site.bind("new")
    site.wait(100)
    site.new_leader()
    site.settle(3)
    assert {one.name for one in site.placement.events(PodSuspended)} == {"long"}
    site.end("new")
    site.settle(20)
    [resumed] = site.placement.events(PodResumed)
    assert resumed.suspended_ms == pytest.approx(110_000, abs=6_000)


def test_an_idle_pod_s_event_says_so() -> None:
    site = idle_gives_way()
    assert [(one.name, one.idle) for one in site.placement.events(PodSuspended)] == [("notebook", True)]


class TwoNodes(Site):
    """Nodes n and n2 with one GPU each. `beats`: those with an agent that lives."""

    def __init__(self) -> None:
        self.beats: tuple[str, ...] = ("n", "n2")
        super().__init__(gpus=1, park=4)
        self.placement.facts(build.node("n2"))
        self.send(m.InventorySeen(build.inventory("n2", gpus=1, strategies=STRATEGIES, park_mib=self.park_mib)))
        self.wait(1)

    def _respond(self, command: m.Command, default: Any) -> list[m.Input]:
        said = super()._respond(command, default)
        if not isinstance(command, m.SendSync):
            return said
        (answered,) = said
        assert isinstance(answered, m.SyncAnswered)
        return [m.SyncAnswered(msgspec.structs.replace(answered.answer, node=command.sync.node))]

    def answer(self, *, reason: str = "", late: int = 0) -> None:
        del reason, late
        now, self.unanswered = self.unanswered, []
        for command in now:
            if command.node not in self.beats:
                continue
            grant = command.grant
            self._execute(grant)
            id_, is_whole = grant.grant.grant_id, grant.suspension is None
            answer = m.GrantAcknowledged(
                command.node, id_, suspension=grant.suspension, number=grant.number, whole=is_whole
            )
            self.send(answer)

    def wait(self, seconds: float) -> list[m.Command]:
        said: list[m.Command] = []
        for _ in range(round(seconds)):
            self.placement.now += 1
            said += self.send(m.BeatSeen(self.beats)) + self.send(m.Tick(self.wall))
        return said

    def at(self, plan: Plan, **nodes: str) -> Plan:
        def on(one: Beneficiary) -> Beneficiary:
            return msgspec.structs.replace(one, node=self.state(one.name).charged or nodes[one.name])

        return msgspec.structs.replace(plan, beneficiaries=tuple(map(on, plan.beneficiaries)))

    def go_on(self, seconds: int = 3_600, *, without: str = "") -> None:
        """Everything is written and answered, but for the updates of one pod."""
        for _ in range(seconds):
            self.wait(1)
            self.unwritten = [order for order in self.unwritten if order.name != without]
            self.write()
            self.answer()


def gang_a_resumes() -> TwoNodes:
    """Gangs a and b of two have the GPUs of both nodes in turns, and the plan that lets a resume is in force."""
    site = TwoNodes()
    for name in ("a0", "a1"):
        site.create(name, gang="a")
    site.bind("a0", "a1")
    site.wait(1_200)
    for name in ("b0", "b1"):
        site.create(name, gang="b")
    there = {f"b{index}": site.state(f"a{index}").charged for index in (0, 1)}
    assert site.propose(site.at(site.plan(("a0", "a1"), ("b0", "b1")), **there)).ok
    site.settle()
    site.bind("b0", "b1")
    site.settle(5)
    site.wait(3 * 3_600)
    assert site.runs() == ["b0", "b1"]
    assert site.propose(site.at(site.plan(("b0", "b1"), ("a0", "a1"), plan_id="back"))).ok
    return site


def test_a_node_that_dies_while_a_gang_resumes_keeps_no_plan_open() -> None:
    site = gang_a_resumes()
    dead, lives = site.state("a0").charged, site.state("a1").charged
    site.write()
    late = [command for command in site.unanswered if command.node == lives]
    site.unanswered = [command for command in site.unanswered if command.node == dead]
    site.answer()
    site.wait(1)
    site.beats = (lives,)
    site.wait(8)
    site.unanswered = late
    site.answer()
    site.wait(1)
    assert {order.name for order in site.unwritten} == {"a0", "a1"}
    site.show(build.newer(site.api["uid-team-a1"]))  # so that the order for it comes too late
    site.go_on(10)
    assert "a1" in site.runs()
    site.go_on()
    assert site.placement.core.preemption.reservations == {}
    for name in ("a0", "b0"):
        site.placement.gone(site.api.pop(f"uid-team-{name}"))
    site.placement.gone(build.node(dead))
    site.send(m.AgentLost(dead))
    site.go_on()
    assert site.placement.core.book.overbooked() == []


def test_a_pod_that_no_update_resumes_keeps_no_plan_open() -> None:
    """A webhook refuses them."""
    site = gang_a_resumes()
    site.write()
    site.answer()
    site.wait(1)
    site.go_on(without="a1")
    assert site.runs() == ["a0"]
    assert site.placement.core.preemption.reservations == {}
    abandoned = site.placement.events(PreemptionAbandoned)[-1]
    assert (abandoned.plan.plan_id, abandoned.reason) == ("back", "not all of its beneficiaries have resumed")
    assert abandoned.failed == (), "its victims were suspended"
    site.go_on()
    assert site.runs() == ["a0", "a1"], "it resumes when updates come through"
