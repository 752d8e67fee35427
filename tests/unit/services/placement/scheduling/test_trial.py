"""Functions that need an unchanged book while others change it."""

from __future__ import annotations

import asyncio

import pytest

from services.placement.engine.engine import Engine
from services.placement.explain.steps import Steps, finish, in_slices, undisturbed
from services.placement.scheduling.trial import Trial
from shared.book.states import pod_state
from tests.support import build
from tests.support.harness.placement import Placement


@pytest.mark.parametrize("changes", [0, 1, 5])
def test_an_answer_is_about_one_state_of_the_book_however_often_it_changes(changes: int) -> None:
    placement = Placement().nodes("a", gpus=8)
    seen: list[bool] = []

    def attempt(engine: Engine) -> Steps[int]:
        """How many whole GPUs can be placed, one per step."""
        trial, count = Trial(engine), 0
        seen.append(engine is placement.core.engine)
        while trial.place(trial.book.add(pod_state(build.gpu_pod(f"ghost{count}", gpus=1)))) is not None:
            count += 1
            yield
        return count

    steps = undisturbed(placement.core.engine, attempt)
    for number in range(changes):
        next(steps)
        placement.place(build.gpu_pod(f"p{number}", gpus=1))
    assert finish(steps) == 8 - (changes if changes < 2 else 2)
    assert seen == ([True] if not changes else [True, True] if changes == 1 else [True, True, False])


async def test_a_long_query_lets_other_tasks_run() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def long() -> Steps[str]:
        while turns < 5:
            yield
        return "done"

    task = asyncio.create_task(other())
    assert await in_slices(long()) == "done"
    task.cancel()
