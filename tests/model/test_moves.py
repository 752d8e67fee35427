"""A checkpointed pod resumes on another GPU, and no GPU is two pods', explored exhaustively; each rule is needed."""

from __future__ import annotations

import pytest

from tests.model.moves import RULES, State, explore


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_two_pods_have_one_gpu_or_the_pod_waits_for_ever(rule: str) -> None:
    worlds = [State(crashes=crashes, losses=losses) for crashes, losses in ((1, 0), (1, 1), (2, 1))]
    assert any(explore(world, rule)[1] for world in worlds), f"{rule} is not needed"


@pytest.mark.parametrize(
    ("turns", "crashes", "losses", "states"), [(1, 0, 0, 54), (1, 2, 2, 20_280), (2, 1, 1, 15_016), (2, 2, 1, 232_932)]
)
def test_with_all_rules_it_resumes_and_each_gpu_is_had_once(turns: int, crashes: int, losses: int, states: int) -> None:
    # As many states as the machine has when it is explored to its end: a change of the model shows here.
    assert explore(State(turns=turns, crashes=crashes, losses=losses)) == (states, [])
