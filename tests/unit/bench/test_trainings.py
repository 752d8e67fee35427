"""The figures of trainings that take turns: losses that differ are found, and full speed is told by three steps."""

from __future__ import annotations

from bench.trainings.figures import Step, between, different, full_speed_ns, step_ns, steps_of

MS = 1_000_000


def run(*ends_ms: int, first: int = 0) -> list[Step]:
    return [Step(first + at, end * MS, f"loss-{first + at}") for at, end in enumerate(ends_ms)]


def test_a_line_that_is_still_written_is_left_out() -> None:
    assert steps_of("0 5 0x1p+2\n1 9 0x1p+1\n2 1") == [Step(0, 5, "0x1p+2"), Step(1, 9, "0x1p+1")]
    assert steps_of("") == []


def test_steps_are_counted_from_a_time_to_before_another() -> None:
    assert between(run(10, 20, 30, 40), 20 * MS, 40 * MS) == 2


def test_the_length_of_a_step_is_the_median() -> None:
    assert step_ns(run(0, 10, 20, 500, 510)) == 10 * MS


def test_full_speed_begins_with_the_first_of_three_steps_that_are_as_fast_as_alone() -> None:
    steps = run(90, 230, 260, 270, 280, 290, 300)
    assert full_speed_ns(steps, 100 * MS, 10 * MS) == (120 * MS, 160 * MS)


def test_what_never_gets_fast_has_no_time() -> None:
    assert full_speed_ns(run(110, 130, 150, 170, 190), 100 * MS, 10 * MS) is None
    assert full_speed_ns(run(110, 120, 130), 100 * MS, 10 * MS) is None, "three steps are not over"


def test_losses_are_compared_where_two_runs_have_them() -> None:
    whole, part = run(1, 2, 3, 4), run(7, 9)
    assert different([whole, part]) == (2, 0)
    assert different([whole, [part[0], Step(1, 9, "another")]]) == (2, 1)
    assert different([whole]) == (0, 0)
