"""The core's clock never runs backwards: it stands still for a moment, or the core's work begins anew."""

from __future__ import annotations

import pytest

from services.preemptor.wall_clock import ClockSetBack, WallClock


def test_a_clock_that_is_corrected_by_less_than_a_second_stands_still_meanwhile() -> None:
    times = iter((100.0, 101.0, 100.3, 101.2))
    clock = WallClock(lambda: next(times))
    assert [clock.now() for _ in range(3)] == [101.0, 101.0, 101.2]


def test_a_clock_that_is_set_back_is_said_to_be_and_one_that_is_set_forward_is_followed() -> None:
    times = iter((100.0, 4000.0, 130.0))
    clock = WallClock(lambda: next(times))
    assert clock.now() == 4000.0
    with pytest.raises(ClockSetBack, match="set back by 3870 s"):
        clock.now()
