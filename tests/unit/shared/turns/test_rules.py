"""Who takes the next turn."""

from __future__ import annotations

from math import inf

import pytest

from shared.turns.rules import (
    DUE_BACK,
    IDLE,
    OVERDUE,
    Job,
    TurnRules,
    changes_at,
    due_back_at,
    end_level,
    is_overdue,
    level,
    most_with_watchdogs,
    rank,
    yields,
)

RULES = TurnRules(level_bounds_gpu_s=(10, 100), min_turn_s=5, max_wait_s=1_000)


def job(attained_gpu_s: float = 0, since: float = 0.0, key: str = "a", *, idle: bool = False) -> Job:
    return Job(key=key, attained_gpu_ms=round(1000 * attained_gpu_s), since=since, idle=idle)


def test_a_job_falls_a_level_at_each_bound() -> None:
    assert [level(job(s), RULES) for s in (0, 9.999, 10, 99.999, 100, 1e9)] == [0, 0, 1, 1, 2, 2]


def test_fewer_levels_first_then_who_has_waited_longest_then_by_name() -> None:
    jobs = [job(50, 1.0, "b"), job(5, 3.0), job(5, 2.0, "z"), job(5, 2.0, "c"), job(500, 0.0, "d")]
    assert [j.key for j in sorted(jobs, key=lambda j: rank(j, RULES, 100.0))] == ["c", "z", "a", "b", "d"]


def test_a_job_that_has_waited_too_long_goes_before_all_levels() -> None:
    old, new = job(500, 0.0), job(0, 900.0)
    assert rank(old, RULES, 999.9) > rank(new, RULES, 999.9)
    assert rank(old, RULES, 1_000.0) < rank(new, RULES, 1_000.0)
    assert rank(old, RULES, 1_000.0)[0] == OVERDUE


@pytest.mark.parametrize(
    ("running", "waiting", "now", "expected"),
    [
        (job(50), job(5), 100.0, True),
        (job(50), job(50), 100.0, False),  # equals do not take turns
        (job(5), job(50), 100.0, False),
        (job(50, since=96.0), job(5), 100.0, False),  # its turn has just begun
        (job(50, since=95.0), job(5), 100.0, True),
        (job(5, since=995.0), job(500), 1_000.0, True),  # overdue
        (job(5, since=996.0), job(500), 1_000.0, False),
        (job(5, since=100.0, idle=True), job(500, since=99.0), 100.0, True),  # whoever waits
    ],
)
def test_who_yields(running: Job, waiting: Job, now: float, expected: bool) -> None:
    assert yields(running, waiting, RULES, now) is expected


def test_an_idle_job_is_the_first_to_yield() -> None:
    busy, idle = job(500), job(5, idle=True)
    assert end_level(busy, RULES) == level(busy, RULES) < end_level(idle, RULES) == IDLE


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"level_bounds_gpu_s": ()}, "level_bounds_gpu_s is"),
        ({"level_bounds_gpu_s": (0, 1)}, "above 0"),
        ({"level_bounds_gpu_s": (5, 5)}, "each above the one before"),
        ({"min_turn_s": 0}, "at least 1"),
        ({"watchdog_s": -1}, "0 for no bound"),
        ({"min_turn_s": 10, "max_wait_s": 9}, "no shorter a wait than a turn"),
    ],
)
def test_rules_that_make_no_sense_are_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TurnRules(**fields)  # type: ignore[arg-type]


WITH_WATCHDOGS = TurnRules(level_bounds_gpu_s=(10, 100), min_turn_s=5, max_wait_s=1_000, watchdog_s=50)


def test_a_suspended_job_goes_first_before_its_watchdog_ends_it_the_earliest_bound_first() -> None:
    bound = Job(key="b", attained_gpu_ms=500_000, since=960.0, bound_s=50)
    later = Job(key="a", attained_gpu_ms=0, since=961.0, bound_s=50)
    overdue, new = job(500, 0.0), job(0, 990.0)
    before, at = 999.9, 1_001.0
    assert [j.key for j in sorted((bound, new), key=lambda j: rank(j, WITH_WATCHDOGS, before))] == ["a", "b"]
    assert rank(bound, WITH_WATCHDOGS, before)[0] == 2
    order = sorted((new, overdue, later, bound), key=lambda j: rank(j, WITH_WATCHDOGS, at))
    assert order[:3] == [bound, later, overdue]
    assert (due_back_at(bound, WITH_WATCHDOGS), due_back_at(overdue, WITH_WATCHDOGS)) == (1_000.0, inf)
    assert rank(bound, WITH_WATCHDOGS, at)[0] == DUE_BACK


def test_a_job_that_is_due_back_is_overdue_only_when_it_has_waited_for_that_long() -> None:
    bound = Job(key="b", attained_gpu_ms=500_000, since=0.0, bound_s=50)
    assert [is_overdue(bound, WITH_WATCHDOGS, now) for now in (40.0, 999.0, 1_000.0)] == [False, False, True]
    assert changes_at(bound, WITH_WATCHDOGS) == (1_000.0, 40.0)


def test_as_many_jobs_with_watchdogs_as_can_be_back_in_time_beside_one_without() -> None:
    for bound_s in (600.0, 900.0, 7_200.0):
        most = int(most_with_watchdogs(bound_s, TurnRules()))
        turn_s = 1.25 * TurnRules().min_turn_s  # with its copies
        assert most * turn_s <= bound_s - turn_s < (most + 1) * turn_s
    assert most_with_watchdogs(600.0, TurnRules()) == 3
    assert most_with_watchdogs(inf, TurnRules()) == inf
