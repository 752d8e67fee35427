"""What a suspended pod gives up is had by one at a time, explored exhaustively; and each rule shown to be needed."""

from __future__ import annotations

import pytest

from tests.model.suspension import RULES, State, explore


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_two_pods_have_the_same_capacity_or_a_pod_stays_suspended(rule: str) -> None:
    assert any(explore(State(crashes=crashes), rule)[1] for crashes in (0, 1)), f"{rule} is not needed"


@pytest.mark.parametrize(("crashes", "states"), [(0, 111), (1, 2288), (2, 26003)])
def test_with_all_rules_one_pod_has_the_capacity_and_it_is_returned(crashes: int, states: int) -> None:
    # As many states as the machine has when it is explored to its end: a change of the model shows here.
    assert explore(State(crashes=crashes)) == (states, [])
