"""Jobs take turns, and neither GPU nor host is overbooked, explored exhaustively; and each rule shown to be needed."""

from __future__ import annotations

import pytest

from tests.model.turns import RULES, State, explore


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_memory_is_overbooked_or_gpu_time_is_lost_or_a_job_waits_for_ever(rule: str) -> None:
    worlds = [State(room=room, crashes=crashes) for crashes in (0, 1) for room in (1, 2)]
    assert any(explore(world, rule)[1] for world in worlds), f"{rule} is not needed"


@pytest.mark.parametrize(("room", "crashes", "states"), [(1, 0, 126), (2, 0, 1598), (1, 1, 1683), (2, 1, 192_703)])
def test_with_all_rules_every_job_runs_again_and_all_memory_is_had_once(room: int, crashes: int, states: int) -> None:
    # As many states as the machine has when it is explored to its end: a change of the model shows here.
    assert explore(State(room=room, crashes=crashes)) == (states, [])
