"""Long answers in short steps, so that decisions never wait.

A query is a generator that yields wherever it may be interrupted, and returns its answer. Between two steps the book
may change; the answer is checked against the book of the last step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from typing import TypeVar

from services.placement.engine.engine import Engine
from services.placement.scheduling.trial import TrialEngine
from shared.book.fork import Fork

T = TypeVar("T")
Steps = Generator[None, None, T]

SLICE_S = 0.001
"""How long an answer may hold up the others in one go."""


def finish(steps: Steps[T]) -> T:
    """The answer, in one go."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            answer: T = stop.value
            return answer


async def in_slices(steps: Steps[T]) -> T:
    """Returns the answer; yields to other tasks after each slice of time."""
    while True:
        until = time.perf_counter() + SLICE_S
        while time.perf_counter() < until:
            try:
                next(steps)
            except StopIteration as stop:
                answer: T = stop.value
                return answer
        await asyncio.sleep(0)


_ATTEMPTS = 2


def undisturbed(engine: Engine, attempt: Callable[[Engine], Steps[T]]) -> Steps[T]:
    """Runs something that needs the book to stand still, in steps: starts again if the book changes between two of
    them. After a few restarts it runs on a copy of the whole book, which is made at once."""
    book = engine.book
    for _ in range(_ATTEMPTS):
        steps, cursor = attempt(engine), book.arrays.cursor
        while book.arrays.cursor == cursor:
            try:
                next(steps)
            except StopIteration as stop:
                answer: T = stop.value
                return answer
            yield
        steps.close()
    apart = TrialEngine(engine, Fork(book).part(), rows=False)
    yield
    return (yield from attempt(apart))
