"""Grants whose end no event has told."""

from __future__ import annotations

from services.metrics.missed_ends import MissedEnds, parts


def test_a_grant_that_is_over_at_two_looks_in_a_row_ended_at_the_first() -> None:
    missed = MissedEnds()
    assert missed.look(["g-1"], 100.0) == {}
    assert missed.look(["g-1", "g-2"], 400.0) == {"g-1": 100.0}
    assert missed.look(["g-2"], 700.0) == {"g-2": 400.0}


def test_a_grant_that_is_there_again_begins_anew() -> None:
    """A new leader may have had no answer of its node yet."""
    missed = MissedEnds()
    missed.look(["g-1"], 100.0)
    missed.look([], 400.0)
    assert missed.look(["g-1"], 700.0) == {}
    assert missed.look(["g-1"], 1000.0) == {"g-1": 700.0}


def test_all_are_asked_about_and_no_message_is_too_large() -> None:
    assert list(parts(["a", "b", "c"], 2)) == [("a", "b"), ("c",)]
    assert list(parts([], 2)) == []
