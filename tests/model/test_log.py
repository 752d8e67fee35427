"""A log that loses records gives no GPU twice, explored exhaustively; and each rule shown to be needed."""

from __future__ import annotations

import pytest

from tests.model.log import RULES, State, after_a_leader, explore


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "holds-again"])
def test_without_this_rule_a_gpu_or_a_term_is_given_twice(rule: str) -> None:
    assert explore(State(terms=3), rule)[1], f"{rule} is not needed"


@pytest.mark.slow
def test_without_holds_in_the_log_again_a_gpu_is_given_twice() -> None:
    """It takes four terms: a leader that takes a hold over, loses its record with the log, and is followed by
    another."""
    assert explore(after_a_leader(terms=4), "holds-again")[1]


@pytest.mark.parametrize(
    ("start", "states"),
    [
        (State(terms=2), 7682),
        (State(terms=3), 158082),
        (State(terms=3, losses=0), 8530),
        (after_a_leader(terms=3), 47785),
    ],
    ids=["2 terms", "3 terms", "no loss", "after a leader"],
)
def test_with_all_rules_no_gpu_and_no_term_is_given_twice(start: State, states: int) -> None:
    # As many states as the machine has when it is explored to its end: a change of the model shows here.
    assert explore(start) == (states, [])
