"""A slice that is resized never shares what it has with another pod, explored exhaustively; and each rule is needed."""

from __future__ import annotations

import pytest

from tests.model.resize import RULES, State, explore


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_capacity_is_given_twice_or_used_memory_is_taken_or_a_resize_never_ends(rule: str) -> None:
    starts = [State(crashes=crashes, edits=3, wipes=wipes) for wipes in (0, 1) for crashes in (0, 1, 2)]
    assert any(explore(start, rule)[1] for start in starts), f"{rule} is not needed"


@pytest.mark.parametrize(
    ("crashes", "edits", "wipes", "states"),
    [(0, 3, 0, 312), (1, 3, 0, 8298), (2, 3, 0, 37594), (1, 4, 0, 41962), (0, 3, 2, 2498), (2, 3, 1, 140438)],
)
def test_with_all_rules_a_slice_has_what_is_wanted_and_no_other_pod_has_any_of_it(
    crashes: int, edits: int, wipes: int, states: int
) -> None:
    # As many states as the machine has when it is explored to its end: a change of the model shows here.
    assert explore(State(crashes=crashes, edits=edits, wipes=wipes)) == (states, [])
