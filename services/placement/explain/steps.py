"""Long answers in short steps, so that decisions never wait.

A query is a generator that yields wherever it may be interrupted, and returns its answer. Between two steps the book
may change; the answer is checked against the book of the last step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

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
