"""Gangs are placed all or none, explored exhaustively; and each rule of theirs shown to be needed."""

from __future__ import annotations

import pytest

from tests.model.gangs import RULES, deadlock, explore, initial


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_a_gang_is_incomplete_stuck_or_decided_twice(rule: str) -> None:
    stories = [explore(initial(gpus=gpus), rule)[1] for gpus in (2, 4)]
    assert any(stories), f"{rule} is not needed"


@pytest.mark.parametrize(("gpus", "states"), [(2, 3_792), (3, 5_104), (4, 31_822)])
def test_with_all_rules_every_gang_is_whole_or_absent(gpus: int, states: int) -> None:
    # As many states as the machine has when it is explored to its end: a change of the model shows here.
    assert explore(initial(gpus=gpus)) == (states, [])


def test_the_rules_hold_with_more_crashes_and_edits() -> None:
    assert explore(initial(gpus=3, crashes=2, edits=2))[1] == []


def test_placed_one_by_one_two_gangs_can_each_hold_what_the_other_waits_for() -> None:
    assert explore(initial(gpus=2), "all-at-once", deadlock)[1]
    assert explore(initial(gpus=2), "", deadlock)[1] == []
