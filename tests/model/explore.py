"""All states of a small state machine, breadth first, and the shortest path to a bad one."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

S = TypeVar("S", bound=Hashable)


def explore(
    start: S, steps: Callable[[S], Iterator[tuple[str, S]]], is_bad: Callable[[S], bool], *, limit: int = 0
) -> tuple[int, list[str]]:
    """(states, names of the steps to a bad one; empty if there is none). Raises RuntimeError above `limit` states."""
    parents: dict[S, tuple[S, str] | None] = {start: None}
    frontier = deque([start])
    known = 1
    with _no_garbage_collection():
        while frontier:
            state = frontier.popleft()
            for name, following in steps(state):
                parents.setdefault(following, (state, name))  # one hash of the state, which is most of the work
                if len(parents) == known:
                    continue
                known += 1
                if is_bad(following):
                    return known, _story(parents, following)
                frontier.append(following)
            if limit and known > limit:
                raise RuntimeError(f"more than {limit} states; make the budgets smaller")
    return known, []


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of states are kept and none is garbage, but the collector would look at all of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _story(parents: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    names: list[str] = []
    step = parents[state]
    while step is not None:
        names.append(step[1])
        step = parents[step[0]]
    return names[::-1]
