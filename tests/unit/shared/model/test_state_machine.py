from __future__ import annotations

import pytest

from services.placement.takeover import PHASES
from shared.book.states import GRANT_PHASES
from shared.model.state_machine import InvalidTransition, Transitions


def test_a_phase_follows_only_where_the_table_says_so() -> None:
    table = Transitions[str]({"a": ("b",), "b": ()})
    assert table.move("a", "b") == "b"
    with pytest.raises(InvalidTransition, match="a may not follow b; these may: none"):
        table.move("b", "a")


@pytest.mark.parametrize("table", [PHASES, GRANT_PHASES])
def test_every_follower_is_a_phase_and_no_phase_follows_itself(table: Transitions[str]) -> None:
    for phase, followers in table.table.items():
        assert set(followers) <= table.table.keys() - {phase}
