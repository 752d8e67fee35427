"""A GPU that another node uses, explored exhaustively; and each rule for its two nodes shown to be needed."""

from __future__ import annotations

import pytest

from tests.model.remote import LIVENESS, RULES, State, explore


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_the_gpu_is_given_twice(rule: str) -> None:
    assert explore(State(), rule).story, f"{rule} is not needed"


@pytest.mark.parametrize("rule", LIVENESS)
def test_without_this_rule_the_gpu_stays_taken(rule: str) -> None:
    assert explore(State(), rule).story, f"{rule} is not needed"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_with_all_rules_no_reachable_state_double_books_or_loses_the_gpu() -> None:
    result = explore(State())
    assert result.story == []
    # As many as the machine has when it is explored to its end: a change of the model shows here.
    assert result.states == 432_384
