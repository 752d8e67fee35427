"""Which logs are trusted, which make a new leader touch every pending pod, and which are deleted (R5)."""

from __future__ import annotations

from typing import Any

import pytest

from services.placement import messages as m
from services.placement.core import Core
from services.placement.listing import Listing
from services.placement.protocol.recovery import Recovery, touch
from services.placement.protocol.write_batcher import WriteBatcher
from shared.book.book import Book
from shared.book.states import PodState, pod_state
from shared.contracts.base import encode
from shared.contracts.commands import AnnounceEvent, Answer, DeletePod, TouchPod
from shared.contracts.events import TermTaken
from shared.contracts.log import DecisionBatch, LogMark, ReadyRecord, TermRecord
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.kube_object import OwnerReference
from tests.support import build
from tests.support.harness.placement import Placement, only

READY = ((40, TermRecord(holder="a", session="a/1")), (50, ReadyRecord(term=40)))
WHOLE = {"gpus": 1}


def grant(sequence: int, term: int = 40) -> Grant:
    share = GpuShare(node="n", uuid="n-gpu-0", memory_mib=81920, compute_milli=1000)
    return Grant(
        grant_id=f"{term}-x",
        term=term,
        sequence=sequence,
        containers={"c": ContainerGrant(strategy="exclusive", gpus=(share,))},
    )


def deleted(placement: Placement) -> list[m.BeginLogAnew]:
    return only(placement.commands, m.BeginLogAnew)


def test_a_log_with_its_own_ready_and_its_marked_record_is_trusted() -> None:
    placement = Placement(build.gpu_pod("p", **WHOLE), term=100, records=READY, mark=50)
    assert (placement.core.phase, placement.core.stats.touched, deleted(placement)) == ("leading", 0, [])


@pytest.mark.parametrize(
    "more", [(), ((61, DecisionBatch(term=60, decisions=())),), ((61, ReadyRecord(term=60, more=True)),)]
)
def test_a_leader_that_died_before_its_ready_has_decided_nothing(more: tuple[Any, ...]) -> None:
    """So the ready of the one before it counts, and no pod is touched: with a long queue that would take minutes."""
    records = (*READY, (60, TermRecord(holder="b")), *more)
    placement = Placement(build.gpu_pod("p", **WHOLE), term=100, records=records, mark=(more or records)[-1][0])
    assert placement.core.phase != "touching"
    assert (placement.core.stats.touched, deleted(placement)) == (0, [])


@pytest.mark.parametrize(
    ("mark", "seen", "first", "why"),
    [
        (0, 0, 101, "do not remember"),
        (51, 0, 101, "record 51 of term 1 has been acted on, and the log does not have it"),
        (100, 0, 101, "sequence 100 has been acted on, and the term taken now is 100"),
        (170, 0, 171, "sequence 170"),
        (50, 100, 101, "sequence 100"),
        (50, 150, 151, "sequence 150"),
    ],
    ids=[
        "no mark",
        "marked record lost",
        "this term's number was given before",
        "mark beyond the log",
        "a watcher met this number",
        "a watcher met a higher one",
    ],
)
def test_a_log_that_has_lost_records_is_deleted_and_begins_higher_than_any_before(
    mark: int, seen: int, first: int, why: str
) -> None:
    placement = Placement(build.gpu_pod("p", **WHOLE), build.node("n"), term=100, records=READY, mark=mark, seen=seen)
    (command,) = deleted(placement)
    assert (command.first_sequence, placement.core.phase) == (first, "over")
    assert why in command.reason
    assert (placement.binds(), placement.log) == ({}, [])


@pytest.mark.parametrize(
    "mark",
    [LogMark(term=30, sequence=50), LogMark(term=40, sequence=40, session="another")],
    ids=["of another term", "of another session"],
)
def test_a_record_that_got_the_marked_ones_sequence_after_a_loss_is_not_that_record(mark: LogMark) -> None:
    placement = Placement(build.gpu_pod("p", **WHOLE), answer=False)
    placement.core = Core("again")
    placement.answer = True
    placement.send(m.TermTaken(term=100, records=READY, mark=mark))
    assert [command.first_sequence for command in deleted(placement)] == [101]


def test_a_pod_that_was_bound_by_a_record_that_the_log_lacks_shows_the_loss() -> None:
    """No live watcher has seen the number: it is on the pod."""
    bound = build.bound(build.gpu_pod("b", **WHOLE), "n", grant(sequence=130))
    (command,) = deleted(Placement(bound, build.gpu_pod("p", **WHOLE), term=100, records=READY, mark=50))
    assert command.first_sequence == 131


def test_a_log_that_was_just_recreated_is_not_deleted_again() -> None:
    """The session that did so has marked the sequence before its first."""
    placement = Placement(build.gpu_pod("p", **WHOLE), term=2000, records=(), mark=100)
    assert (placement.core.phase, deleted(placement)) == ("touching", [])


def test_a_first_leader_that_died_before_it_did_anything_leaves_a_log_that_has_lost_nothing() -> None:
    placement = Placement(build.gpu_pod("p", **WHOLE), answer=False)
    placement.core = Core("again")
    placement.answer = True
    placement.send(m.TermTaken(term=100, records=((50, TermRecord(holder="a")),), mark=LogMark(term=0, sequence=49)))
    assert (placement.core.phase, deleted(placement)) == ("touching", [])


def test_an_empty_log_without_a_mark_may_have_lost_everything() -> None:
    """As on the very first start. A backup from that time would give the first term's number a second time."""
    placement = Placement(build.gpu_pod("p", **WHOLE), term=2000, records=(), mark=0)
    assert [command.first_sequence for command in deleted(placement)] == [2001]


# --- pods that cannot be touched --------------------------------------------------------------------------------


def touched(placement: Placement) -> list[str]:
    return [p.uid for p in placement.patches() if isinstance(p, TouchPod)]


def refuse(placement: Placement, uid: str, times: int = 3) -> list[m.Command]:
    said: list[m.Command] = []
    for _ in range(times):
        said += placement.send(
            m.PatchesAnswered((Answer(uid=uid, outcome="refused", message="metadata.annotations: Too long"),))
        )
        said += placement.tick(2.5)
    return said


def takeover_with_an_untouchable_pod(**pod: object) -> tuple[Placement, object, object]:
    stuck, other = build.gpu_pod("stuck", **WHOLE, **pod), build.gpu_pod("other", **WHOLE)
    placement = Placement(build.node("n"), stuck, other)
    placement.send(m.InventorySeen(build.inventory("n", gpus=2)))
    refuse(placement, stuck.metadata.uid)
    placement.facts(build.newer(other))
    return placement, stuck, other


def test_a_pod_that_cannot_be_touched_blocks_no_other_pod() -> None:
    placement, stuck, other = takeover_with_an_untouchable_pod()
    assert placement.core.phase == "leading"
    assert set(placement.binds()) == {other.metadata.uid}
    assert placement.core.recovery.excluded == {stuck.metadata.uid: stuck.metadata.resource_version}
    (event,) = placement.events(TermTaken)
    assert (event.touched, event.excluded) == (2, 1)


def test_an_excluded_pod_gets_a_reason_and_kerf_why_states_it() -> None:
    placement, stuck, _ = takeover_with_an_untouchable_pod()
    (note,) = [p for p in placement.patches() if isinstance(p, AnnounceEvent)]
    assert (note.uid, note.reason, note.type) == (stuck.metadata.uid, "NotUpdatable", "Warning")
    assert "metadata.annotations: Too long" in note.note
    explained = placement.core.explainer.why(placement.core.book.pods[stuck.metadata.uid], max_nodes=0)
    assert [reason.code for reason in explained.summary] == ["not-updatable"]


def test_one_refusal_excludes_no_pod() -> None:
    """A refusal may be temporary, such as that of a webhook that is restarted."""
    stuck = build.gpu_pod("stuck", **WHOLE)
    placement = Placement(build.node("n"), stuck)
    refuse(placement, stuck.metadata.uid, times=2)
    assert (placement.core.phase, placement.core.recovery.excluded) == ("touching", {})


def test_other_outcomes_exclude_no_pod() -> None:
    stuck = build.gpu_pod("stuck", **WHOLE)
    placement = Placement(build.node("n"), stuck)
    for outcome in ("unknown", "throttled", "conflict", "gone") * 3:
        placement.send(m.PatchesAnswered((Answer(uid=stuck.metadata.uid, outcome=outcome),)))
    assert placement.core.phase == "touching"


def test_an_excluded_pod_is_touched_again_ever_more_rarely_and_placed_when_it_has_moved() -> None:
    """A webhook that does not answer for some seconds keeps no pod for half a minute."""
    placement, stuck, _ = takeover_with_an_untouchable_pod()
    touches, since = [], placement.now
    for _ in range(1_200):
        before = touched(placement).count(stuck.metadata.uid)
        placement.tick(0.1)
        if touched(placement).count(stuck.metadata.uid) > before:
            touches.append(placement.now - since)
            since = placement.now
    assert touches[1:] == pytest.approx([4, 8, 16, 30, 30], abs=0.2)
    moved = build.newer(stuck)
    placement.send(m.BeatSeen(("n",)))
    placement.facts(moved)
    assert placement.core.recovery.excluded == {}
    assert placement.binds()[stuck.metadata.uid].resource_version == moved.metadata.resource_version


def test_an_old_binding_gives_an_excluded_pod_no_gpu() -> None:
    """The GPU that it names belongs to another pod by now. The pod's controller creates another pod."""
    owner = (OwnerReference(kind="Job", name="j", uid="j", controller=True),)
    placement, stuck, _ = takeover_with_an_untouchable_pod()
    stuck = build.newer(stuck, owner_references=owner)
    # The same pod, still at the version at which it cannot be touched, appears bound by a Binding of an earlier
    # leader.
    late = build.bound(stuck, "n", grant(sequence=39, term=39))
    commands = placement.facts(late)
    assert "39-x" not in placement.core.book.grants
    assert only(commands, m.SendGrant) == []
    (order,) = [p for c in only(commands, m.SendPatches) for p in c.patches if isinstance(p, DeletePod)]
    assert (order.uid, order.resource_version) == (stuck.metadata.uid, late.metadata.resource_version)
    assert placement.core.book.overbooked() == []
    assert placement.core.recovery.excluded == {}


def test_a_bare_pod_that_is_bound_to_a_void_grant_stays_with_a_message_on_what_to_do() -> None:
    placement, stuck, _ = takeover_with_an_untouchable_pod()
    commands = placement.facts(build.bound(stuck, "n", grant(sequence=39, term=39)))
    (note,) = [p for c in only(commands, m.SendPatches) for p in c.patches if isinstance(p, AnnounceEvent)]
    assert note.reason == "GrantVoid"
    assert "delete it and create it again" in note.note


def test_an_excluded_pod_that_is_deleted_is_forgotten() -> None:
    placement, stuck, _ = takeover_with_an_untouchable_pod()
    placement.gone(stuck)
    assert placement.core.recovery.excluded == {}
    placement.tick(31.0)


def test_a_successor_excludes_what_its_predecessor_excluded() -> None:
    """The log is complete for it, and yet an earlier Binding may succeed for this pod: it has not been touched."""
    placement, stuck, other = takeover_with_an_untouchable_pod()
    successor = Placement(build.node("n"), stuck, build.newer(other), term=500, records=tuple(placement.log))
    successor.send(m.InventorySeen(build.inventory("n", gpus=2)))
    assert successor.core.phase == "leading"
    assert stuck.metadata.uid in successor.core.recovery.excluded
    assert stuck.metadata.uid not in successor.binds()
    successor.tick(0.1)
    assert touched(successor) == [stuck.metadata.uid]
    refuse(successor, stuck.metadata.uid)
    moved = build.newer(stuck)
    successor.facts(moved)
    assert successor.binds()[stuck.metadata.uid].resource_version == moved.metadata.resource_version


def test_a_renewed_term_remembers_the_excluded() -> None:
    placement, stuck, _ = takeover_with_an_untouchable_pod()
    placement.send(m.TermRenewed(term=900))
    assert placement.log[-1][1] == ReadyRecord(term=900, excluded={stuck.metadata.uid: stuck.metadata.resource_version})


def test_a_successor_places_a_pod_that_has_moved_since_it_was_excluded() -> None:
    placement, stuck, other = takeover_with_an_untouchable_pod()
    moved = build.newer(stuck)
    successor = Placement(build.node("n"), moved, build.newer(other), term=500, records=tuple(placement.log))
    successor.send(m.InventorySeen(build.inventory("n", gpus=2)))
    assert successor.core.recovery.excluded == {}
    assert successor.binds()[moved.metadata.uid].resource_version == moved.metadata.resource_version


# --- touching ---------------------------------------------------------------------------------------------------


def test_a_ready_that_names_another_term_than_the_newest_does_not_count() -> None:
    """The fence accepts no such record; a log that has one was not written by its leaders alone."""
    records = ((60, TermRecord(holder="b")), (61, ReadyRecord(term=40)))
    recovery = Recovery()
    recovery.replay(records, LogMark(term=40, sequence=61))
    assert not recovery.ready
    recovery.replay(((62, ReadyRecord(term=60)),), LogMark(term=60, sequence=62))
    assert recovery.ready


def test_a_pod_seen_at_the_version_it_had_has_not_moved() -> None:
    """Something that it refers to has changed, such as its ResourceClaim, and not the pod."""
    pod = build.gpu_pod("p", **WHOLE)
    recovery = Recovery()
    recovery.must_move([pod_state(pod)], now=0.0)
    recovery.seen(pod_state(pod))
    assert not recovery.touched
    recovery.seen(pod_state(build.newer(pod)))
    assert recovery.touched


def test_a_touch_of_a_later_term_or_version_writes_something_else() -> None:
    """A patch that changes nothing leaves the version as it is."""
    pod = build.gpu_pod("p", **WHOLE)
    first = touch(pod_state(pod), 100)
    assert first.token not in {touch(pod_state(pod), 101).token, touch(pod_state(build.newer(pod)), 100).token}
    assert touch(pod_state(pod), 100) == first


def test_no_pod_is_decided_while_others_are_still_to_be_touched() -> None:
    """Not even a pod without GPUs, for which no agent has to answer: an old Binding may take its capacity."""
    placement = Placement(build.node("n"), build.pod("stuck", requests={"cpu": "64"}))
    placement.facts(build.pod("new", requests={"cpu": "1"}))
    assert (placement.core.phase, placement.core.holds, placement.log) == ("touching", {}, [])


def pods(count: int) -> list[PodState]:
    return [pod_state(build.gpu_pod(f"p{i}", **WHOLE)) for i in range(count)]


def test_a_large_clusters_pods_are_touched_a_thousand_at_a_time_and_each_gets_its_turn() -> None:
    recovery = Recovery()
    recovery.must_move(pods(2500), now=0.0)
    first = [uid for uid, _ in recovery.due(0.0)]
    assert (len(first), recovery.due(0.1)) == (1000, []), "the first are under way"
    second = [uid for uid, _ in recovery.due(2.0)]
    third = [uid for uid, _ in recovery.due(4.0)]
    assert len({*first, *second, *third}) == 2500


def test_the_first_touch_of_a_pod_and_every_second_one_after_it_is_by_its_status_only() -> None:
    """A webhook may hang, or take the annotation away again: then a touch is done, and the pod has not moved. Webhooks
    on pods do not see their status."""
    recovery = Recovery()
    recovery.must_move(pods(1), now=0.0)
    assert [by_status for now in (0.0, 2.0, 4.0, 6.0) for _, by_status in recovery.due(now)] == [
        True,
        False,
        True,
        False,
    ]


def test_a_pod_that_no_touch_moves_is_excluded_whatever_the_answers_are() -> None:
    """A webhook that hangs gives no answer, and one that undoes the touch answers yes. Neither stops the cluster."""
    stuck, other = build.gpu_pod("stuck", **WHOLE), build.gpu_pod("other", **WHOLE)
    placement = Placement(build.node("n"), stuck, other)
    placement.send(m.InventorySeen(build.inventory("n", gpus=2)))
    placement.facts(build.newer(other))
    for _ in range(29):
        placement.tick(2.0)
    assert placement.core.phase == "touching"
    placement.tick(2.5)
    assert placement.core.phase == "leading"
    assert set(placement.core.recovery.excluded) == {stuck.metadata.uid}
    assert set(placement.binds()) == {other.metadata.uid}


def test_no_pod_is_excluded_while_no_watcher_runs() -> None:
    stuck = build.gpu_pod("stuck", **WHOLE)
    placement = Placement(build.node("n"), stuck)
    for _ in range(40):
        placement.tick(2.0)
        placement.send(m.TouchesNotSent((stuck.metadata.uid,)))
    assert (placement.core.phase, placement.core.recovery.excluded) == ("touching", {})
    for _ in range(30):
        placement.tick(2.0)
    assert set(placement.core.recovery.excluded) == {stuck.metadata.uid}


def test_very_many_excluded_pods_take_several_records_and_the_log_is_complete_with_the_last() -> None:
    excluded = {f"{i:036}": str(i) for i in range(12_000)}
    batcher = WriteBatcher(64)
    batcher.owe(ReadyRecord(term=100, excluded=excluded), [])
    assert [(len(record.excluded), record.more) for record in batcher.owed] == [
        (5000, True),
        (5000, True),
        (2000, False),
    ]
    assert max(len(encode(record)) for record in batcher.owed) < 500_000
    log = [(100, TermRecord(holder="a")), *((101 + i, record) for i, record in enumerate(batcher.owed))]
    partly, whole = Recovery(), Recovery()
    partly.replay(log[:-1], LogMark(term=100, sequence=102))
    whole.replay(log, LogMark(term=100, sequence=103))
    assert (partly.ready, whole.ready) == (False, True)
    assert len(whole._excluded_before) == 12_000


def test_the_excluded_of_an_earlier_ready_are_not_those_of_a_later_one() -> None:
    log = (
        (40, TermRecord(holder="a")),
        (41, ReadyRecord(term=40, excluded={"u": "1"})),
        (50, TermRecord(holder="b")),
        (51, ReadyRecord(term=50)),
    )
    recovery = Recovery()
    recovery.replay(log, LogMark(term=50, sequence=51))
    assert recovery._excluded_before == {}


@pytest.mark.parametrize("dead", range(8))
def test_what_pods_have_seen_shows_a_loss_however_many_takeovers_have_ended_early_since(dead: int) -> None:
    """The log was taken back to its `ready`, 50, and its mark with it. Sequences 51 to 54 were lost, each with a
    decision whose Binding was sent; each takeover since has one of these numbers for its term."""
    terms = tuple((51 + i, TermRecord(holder="b", reason="elected", session=f"b/{i}")) for i in range(dead))
    placement = Placement(build.gpu_pod("p", **WHOLE), term=51 + dead, records=(*READY, *terms), mark=50, seen=54)
    (begun,) = deleted(placement)
    assert begun.first_sequence > 54


def test_a_renewed_term_has_sent_orders_before_its_ready() -> None:
    records = (
        *READY,
        (60, TermRecord(holder="a", reason="renewed", session="a/1")),
        (61, DecisionBatch(term=60, decisions=())),
        (62, TermRecord(holder="b", reason="elected", session="b/1")),
    )
    recovery = Recovery()
    recovery.replay(records, LogMark(term=60, sequence=61))
    assert recovery.ready
    assert recovery.lost(70, 61) == ""
    assert "since term 62" in recovery.lost(70, 62)


def test_what_was_seen_before_a_complete_ready_shows_no_loss() -> None:
    records = (*READY, (60, TermRecord(holder="b", reason="elected")), (61, ReadyRecord(term=60)))
    recovery = Recovery()
    recovery.replay(records, LogMark(term=60, sequence=61))
    assert recovery.lost(70, 69) == ""
    assert recovery.lost(70, 70)


def test_the_excluded_of_a_ready_that_was_never_complete_do_not_replace_those_before() -> None:
    log = (
        (40, TermRecord(holder="a")),
        (41, ReadyRecord(term=40, excluded={"u": "1"}, more=True)),
        (42, ReadyRecord(term=40, excluded={"v": "1"})),
        (50, TermRecord(holder="b")),
        (51, ReadyRecord(term=50, excluded={"w": "1"}, more=True)),
    )
    recovery = Recovery()
    recovery.replay(log, LogMark(term=50, sequence=51))
    assert (recovery.ready, recovery._excluded_before) == (True, {"u": "1", "v": "1"})


def test_a_leader_that_has_written_a_part_of_the_excluded_does_not_lead_yet() -> None:
    placement = Placement(answer=False)
    placement.send(m.SnapshotSeen((), 0))
    placement.core.batcher.in_flight = ReadyRecord(term=placement.core.term, more=True)
    placement.send(m.Appended(500))
    assert placement.core.phase == "readying"


def test_a_sequence_beyond_any_log_is_not_believed() -> None:
    """A restore of pods can write any number; a log that started above it could not be created."""
    for sequence, seen in ((77, 77), (2**60, 0)):
        pod = build.bound(build.gpu_pod("p", **WHOLE), "n", grant(sequence))
        listing = Listing(Book())
        listing.take(m.SnapshotSeen(build.put(pod), 0))
        assert listing.log_sequence_seen == seen
