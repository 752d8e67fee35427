"""Which pod's reason is found next."""

from __future__ import annotations

from collections.abc import Iterator

from services.placement.scheduling.unplaced import Unplaced

PRIORITIES = {"low1": 0, "low2": 0, "low3": 0, "high1": 100, "high2": 100, "mid": 50}


def noted(*uids: str) -> Unplaced:
    unplaced = Unplaced(PRIORITIES.__getitem__)
    for uid in uids:
        unplaced.note(uid)
    return unplaced


def order(unplaced: Unplaced) -> Iterator[str]:
    while (uid := unplaced.next_unexplained()) is not None:
        yield uid


def test_the_most_important_pod_and_the_oldest_note_take_turns() -> None:
    """On 5,000 nodes one reason takes half a second, and nothing is preempted for a pod that has none: behind a
    thousand others an important pod would wait for minutes."""
    unplaced = noted("low1", "low2", "low3", "mid", "high1", "high2")
    assert list(order(unplaced)) == ["high1", "low1", "high2", "low2", "mid", "low3"]


def test_a_pod_is_explained_once_however_often_it_is_noted() -> None:
    assert list(order(noted("low1", "high1", "low1", "high1"))) == ["high1", "low1"]


def test_what_is_placed_forgotten_or_taken_out_is_not_explained() -> None:
    unplaced = noted("low1", "low2", "high1", "mid")
    unplaced.placed("high1")
    unplaced.forget("low1")
    unplaced.placed("high2")  # it was not noted
    assert [unplaced.is_unexplained(uid) for uid in ("high1", "low1", "mid")] == [False, False, True]
    assert list(order(unplaced)) == ["mid", "low2"]
    assert not unplaced.is_unexplained("mid")


def test_pods_behind_one_that_does_not_fit_are_explained_once() -> None:
    unplaced = noted("low1")
    unplaced.explained.add("low2")
    unplaced.note_behind(["low2", "low3"])
    assert list(order(unplaced)) == ["low1", "low3"]
