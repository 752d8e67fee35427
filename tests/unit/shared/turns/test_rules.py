"""Who takes the next turn."""

from __future__ import annotations

import pytest

from shared.turns.rules import IDLE, OVERDUE, Job, TurnRules, end_level, level, rank, yields

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
        ({"min_turn_s": 10, "max_wait_s": 9}, "no shorter a wait than a turn"),
    ],
)
def test_rules_that_make_no_sense_are_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TurnRules(**fields)  # type: ignore[arg-type]
