from __future__ import annotations

from services.preemptor.plans.window import FIRST, LATE_S, QUICK_S, Window


def test_quick_answers_widen_it_one_by_one_up_to_the_most() -> None:
    window = Window(FIRST + 2)
    limits = []
    for _ in range(3):
        window.answered(QUICK_S)
        limits.append(window.limit)
    assert limits == [FIRST + 1, FIRST + 2, FIRST + 2]


def test_missing_and_late_answers_halve_it_down_to_one() -> None:
    window = Window(64)
    limits = []
    for _ in range(3):
        window.unanswered()
        limits.append(window.limit)
    window.answered(LATE_S + 0.1)
    assert [*limits, window.limit] == [4, 2, 1, 1]


def test_an_answer_that_is_neither_leaves_it() -> None:
    window = Window(64)
    window.answered(LATE_S)
    assert window.limit == FIRST


def test_it_never_begins_above_the_most() -> None:
    assert Window(3).limit == 3
