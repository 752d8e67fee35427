"""How the failover bench counts a gap."""

from __future__ import annotations

import pytest

from bench.failover import longest_gap_s, summary


def test_a_gap_that_began_before_the_fault_counts_whole() -> None:
    assert longest_gap_s([1.0, 9.0, 12.0, 12.1], since=10.0, until=13.0) == 3.0


def test_bindings_long_before_and_after_the_fault_do_not_count() -> None:
    assert longest_gap_s([1.0, 9.9, 10.1, 10.3, 50.0], since=10.0, until=13.0) == pytest.approx(0.2)


def test_no_binding_at_all_is_a_gap_of_the_whole_time() -> None:
    assert longest_gap_s([], since=10.0, until=13.0) == 3.0


def test_the_summary_rounds_up_and_takes_the_lower_median() -> None:
    assert summary([10.2, 4000.1, 20.0, 30.0]) == {"faults": 4, "gap_ms_p50": 20, "gap_ms_max": 4001}
    assert summary([]) == {"faults": 0, "gap_ms_p50": 0, "gap_ms_max": 0}
