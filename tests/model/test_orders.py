"""What runs on a node is what its pods were given, explored exhaustively; and each rule shown to be needed."""

from __future__ import annotations

import pytest

from tests.model.orders import RULES, State, explore

AFTER_A_LOSS = State(terms=3, losses=1, edits=0, deletions=0)
STARTS = {"closed-terms": AFTER_A_LOSS, "own-words": State(terms=1, lies=1)}


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_a_node_runs_what_it_must_not_or_never_starts_a_pod(rule: str) -> None:
    assert explore(STARTS.get(rule, State(terms=2)), rule)[1], f"{rule} is not needed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "states"),
    [
        (State(terms=2, deletions=0), 124_071),
        (State(terms=2, edits=0), 85_619),
        (State(terms=1, lies=1), 18_056),
        (AFTER_A_LOSS, 352_219),
    ],
    ids=["edits", "deletions", "lies", "a loss"],
)
def test_with_all_rules_what_runs_is_what_its_pods_were_given(start: State, states: int) -> None:
    # As many states as the machine has when it is explored to its end: a change of the model shows here.
    assert explore(start) == (states, [])
