"""Which pod is tried next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.placement.scheduling.equivalence_group import Entry, EquivalenceGroup
from services.placement.scheduling.pauses import Pauses
from services.placement.scheduling.queue import Queue
from shared.book.states import pod_state
from tests.support import build
from tests.support.harness.placement import Placement


def add(
    queue: Queue, name: str, key: bytes = b"k", *, priority: int = 0, created: str = "2026-01-01", plain: bool = True
) -> str:
    pod = build.gpu_pod(name, memory="1Gi", created=created, priority=priority)
    queue.add(pod_state(pod), key, plain=plain)
    return pod.metadata.uid


def take(queue: Queue, now: float = 0.0) -> str | None:
    uid = queue.next(now)
    if uid is not None:
        queue.remove(uid)
    return uid


def test_priority_decides_first_and_age_within_it() -> None:
    queue = Queue()
    young = add(queue, "young", b"a", created="2026-02-01")
    old = add(queue, "old", b"b", created="2026-01-01")
    high = add(queue, "high", b"c", priority=10, created="2026-03-01")
    assert [take(queue) for _ in range(4)] == [high, old, young, None]


def test_an_equivalence_group_waits_if_its_head_does_not_fit_and_blocks_no_other() -> None:
    queue = Queue()
    doomed, also = add(queue, "doomed", b"big"), add(queue, "also", b"big")
    small = add(queue, "small", b"small")
    assert queue.next(0) == doomed
    queue.mark_unschedulable(doomed, 0)
    assert take(queue) == small
    assert take(queue) is None
    assert also in queue


def test_a_newcomer_of_a_waiting_shape_waits_with_it() -> None:
    queue = Queue()
    queue.mark_unschedulable(add(queue, "a"), 0)
    add(queue, "b")
    assert queue.next(0) is None


def test_a_change_wakes_only_the_equivalence_groups_that_it_helps() -> None:
    queue = Queue()
    a, b = add(queue, "a", b"a"), add(queue, "b", b"b")
    queue.mark_unschedulable(a, 0)
    queue.mark_unschedulable(b, 0)
    assert queue.wake(lambda uid: uid == b) == 1
    assert take(queue) == b
    assert take(queue) is None


def test_a_pod_that_depends_on_others_pauses_longer_each_time() -> None:
    queue = Queue()
    uid = add(queue, "a", plain=False)
    for now, pause in ((0.0, 1.0), (10.0, 2.0), (20.0, 4.0)):
        assert queue.next(now) == uid
        queue.mark_unschedulable(uid, now)
        queue.wake(lambda _: True)
        assert queue.next(now + pause - 0.1) is None
        assert queue.next(now + pause) == uid


def test_a_pause_that_is_shortened_ends_at_its_new_end() -> None:
    queue = Queue()
    uid, other = add(queue, "a", plain=False), add(queue, "b", b"b")
    queue.pause_for(uid, 0.0, 60.0)
    assert queue.next(0.0) == other, "set aside until its pause is over"
    queue.remove(other)
    queue.pause_for(uid, 1.0, 1.0)
    assert [queue.next(at) for at in (1.5, 2.0)] == [None, uid]


def test_pods_that_pause_cost_nothing_when_the_next_one_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each input of placement looks for the next one, and thousands of pods may pause."""
    queue = Queue()
    for number in range(500):
        queue.pause_for(add(queue, f"p{number}", b"%d" % number, plain=False), 0.0, 10.0)
    asked: list[str] = []
    until = Pauses.until
    monkeypatch.setattr(Pauses, "until", lambda pauses, uid: asked.append(uid) or until(pauses, uid))
    for _ in range(100):
        assert queue.next(1.0) is None
    assert len(asked) == 500
    assert [queue.next(10.0) is None, len(queue)] == [False, 500]


def test_a_pod_keeps_its_age_when_it_comes_back() -> None:
    queue = Queue()
    first, second = add(queue, "first"), add(queue, "second")
    queue.remove(first)
    queue.add(pod_state(build.gpu_pod("first", memory="1Gi", created="2026-01-01")), b"k", plain=True)
    assert [take(queue), take(queue)] == [first, second]


def test_ahead_counts_those_tried_before() -> None:
    queue = Queue()
    add(queue, "a", b"a", priority=5)
    add(queue, "b", b"b", created="2025-01-01")
    assert queue.ahead_of(add(queue, "c", b"c")) == 2


def test_many_doomed_pods_cost_one_attempt_each_time_something_changes() -> None:
    """Problem 23 of other schedulers: one doomed pod starves the others every cycle."""
    placement = Placement().nodes("n", gpus=1)
    placement.facts(*[build.gpu_pod(f"doomed{i}", gpus=4) for i in range(200)])
    tried = placement.core.stats.rejections
    assert placement.place(*[build.gpu_pod(f"ok{i}", memory="1Gi") for i in range(20)]) == {
        f"ok{i}": "n" for i in range(20)
    }
    assert placement.core.stats.rejections == tried == 1


def test_freed_capacity_goes_to_the_oldest_pod_that_fits() -> None:
    from services.placement import messages as m

    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    seen = placement.bind(pod)
    placement.facts(build.gpu_pod("young", gpus=1, created="2026-11-21T00:02:00Z"))
    placement.facts(build.gpu_pod("old", gpus=1, created="2026-11-21T00:01:00Z"))
    placement.gone(seen)
    grant_id = next(iter(placement.core.book.grants))
    placement.send(m.ReleaseSeen("n", grant_id))
    assert "uid-team-old" in placement.binds()
    assert "uid-team-young" not in placement.binds()


def test_a_pod_with_an_always_refused_binding_blocks_no_other_of_its_shape() -> None:
    queue = Queue()
    doomed, other = add(queue, "doomed"), add(queue, "other")
    assert take(queue) == doomed
    queue.pause(doomed, 0)
    add(queue, "doomed")
    assert [take(queue), take(queue)] == [other, None]
    assert take(queue, now=1.0) == doomed


def test_the_first_pods_of_groups_that_wait_are_listed() -> None:
    queue = Queue()
    first, second = add(queue, "first", b"a", created="2026-01-01"), add(queue, "second", b"a", created="2026-02-01")
    paused, trying = add(queue, "paused", b"b", plain=False), add(queue, "trying", b"c")
    queue.mark_unschedulable(first, 0)
    queue.pause(paused, 0)
    assert {entry[3] for _, entry in queue.first_waiting(0, 1)} == {first, paused}
    assert {entry[3] for _, entry in queue.first_waiting(0, 2, (trying,))} == {first, second, paused, trying}


def test_a_pods_place_in_the_order_is_known_as_long_as_it_waits() -> None:
    queue = Queue()
    uid = add(queue, "a", priority=7)
    entry = queue.entry_of(uid)
    assert entry is not None
    assert (entry[0], entry[3]) == (-7, uid)
    queue.remove(uid)
    assert queue.entry_of(uid) is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_a_group_has_its_best_pod_in_front_whatever_comes_and_goes(steps: list[tuple[bool, int]]) -> None:
    """Those that are taken out from behind it stay in the heap for a while."""
    group, there = EquivalenceGroup(b"g", plain=True, queue=""), dict[str, Entry]()
    for number, (adds, which) in enumerate(steps):
        uid = str(which)
        if adds and uid not in there:
            there[uid] = (-(which % 3), "", number, uid)
            group.add(there[uid])
        elif not adds and uid in there:
            del there[uid]
            group.take_out(uid)
        assert (len(group), sorted(group.members)) == (len(there), sorted(there.values()))
        assert not there or group.head == min(there.values())


def test_a_gang_with_another_queue_label_is_tried_in_that_queue() -> None:
    """Its pods waited in no queue, by a label that was misspelt."""
    placement = Placement().nodes("n1", gpus=8)
    placement.facts(build.queues("queues: [{name: good, guaranteed: {gpus: 4}}, {name: other, limit: {gpus: 0}}]"))
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    pods = [build.gpu_pod(f"p{i}", gpus=1, annotations=notes, labels={"kerf.dev/queue": "typo"}) for i in range(2)]
    placement.facts(*pods)
    assert placement.binds() == {}
    placement.facts(*[build.newer(pod, labels={"kerf.dev/queue": "good"}) for pod in pods])
    placement.tick(1.0)
    assert len(placement.binds()) == 2
