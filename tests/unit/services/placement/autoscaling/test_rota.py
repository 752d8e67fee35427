from __future__ import annotations

from services.placement.autoscaling.rota import Rota


def test_all_are_taken_once_a_turn_and_a_turn_begins_no_sooner_than_it_may() -> None:
    rota = Rota(5.0)
    names = ["a", "b", "c"]
    assert [rota.next(names, 2, at) for at in (0.0, 0.1, 0.2, 4.9)] == [["a", "b"], ["c"], [], []]
    assert rota.next([*names, "d"], 9, 5.0) == ["a", "b", "c", "d"]
