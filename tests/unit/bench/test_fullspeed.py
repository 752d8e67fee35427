"""When work counts as running at full speed, from times alone."""

from __future__ import annotations

from bench.fullspeed.figures import full_speed_ns, percentile, rate_per_s

MS = 1_000_000


def every(step_ms: int, begin_ms: int, end_ms: int) -> list[int]:
    return [at * MS for at in range(begin_ms, end_ms, step_ms)]


def test_work_that_never_waits_is_at_full_speed_immediately() -> None:
    assert full_speed_ns(every(1, 0, 1000), 100 * MS, 1000) == 0


def test_full_speed_begins_where_the_window_first_has_enough() -> None:
    """Five of a hundred may be missing, so the window may begin 5 ms before the work does."""
    assert full_speed_ns(every(1, 140, 1000), 100 * MS, 1000) == 35 * MS


def test_a_pause_after_the_beginning_counts() -> None:
    done = every(1, 100, 250) + every(1, 300, 1000)
    assert full_speed_ns(done, 100 * MS, 1000) == 195 * MS


def test_three_windows_in_a_row_are_needed() -> None:
    assert full_speed_ns(every(1, 0, 400), 101 * MS, 1000) is None
    assert full_speed_ns([], 0, 1000) is None


def test_half_speed_is_not_full_speed() -> None:
    assert full_speed_ns(every(2, 0, 2000), 0, 1000) is None


def test_the_rate_counts_only_events_after_the_given_time() -> None:
    assert round(rate_per_s(every(10, 0, 500) + every(1, 500, 1500), 500 * MS)) == 1000


def test_percentiles_are_values_that_were_seen() -> None:
    assert [percentile([3.0, 1.0, 2.0, 4.0], part) for part in (0.5, 0.99, 0.25)] == [2.0, 4.0, 1.0]
