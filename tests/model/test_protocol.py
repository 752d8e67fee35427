"""The rules R1 to R6, explored exhaustively, and each shown to be needed."""

from __future__ import annotations

import pytest

from tests.model.protocol import RULES, explore, initial, overrun


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_there_is_a_double_booking(rule: str) -> None:
    result = explore(initial(terms=2), off=rule)
    assert result.story, f"{rule} is not needed: {result.states} states and no double booking"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_with_all_rules_no_reachable_state_double_books() -> None:
    result = explore(initial(terms=2))
    assert result.story == []
    # As many as the machine has when it is explored to its end: a change of the model shows here.
    assert result.states == 2_218_211


def test_the_device_gate_prevents_double_use_even_if_a_rule_is_broken() -> None:
    """R7 is the last defence: without R6 one GPU is given to two pods, which run concurrently; with the gate never."""
    start = initial(terms=1, edits=0)
    assert explore(start, off="R6-node-returns", bad=overrun).story
    assert explore(start, off="R6-node-returns", bad=overrun, gate=True).story == []
