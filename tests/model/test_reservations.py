"""A victim's loss is its beneficiary's gain, explored exhaustively; and each rule shown to be needed."""

from __future__ import annotations

import pytest

from tests.model.reservations import RULES, State, explore


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_an_eviction_helps_no_pod_or_a_gpu_is_given_twice(rule: str) -> None:
    assert explore(State(), rule)[1], f"{rule} is not needed"


@pytest.mark.parametrize(("crashes", "states"), [(1, 100), (2, 169), (3, 238)])
def test_with_all_rules_freed_capacity_goes_to_the_preemptor(crashes: int, states: int) -> None:
    # As many states as the machine has when it is explored to its end: a change of the model shows here.
    assert explore(State(crashes=crashes)) == (states, [])
