"""All states of a small state machine, breadth first, and the shortest path to a bad one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

S = TypeVar("S", bound=Hashable)


def explore(
    start: S, steps: Callable[[S], Iterator[tuple[str, S]]], is_bad: Callable[[S], bool], *, limit: int = 0
) -> tuple[int, list[str]]:
    """(states, names of the steps to a bad one; empty if there is none). Raises RuntimeError above `limit` states."""
    parents: dict[S, tuple[S, str] | None] = {start: None}
    frontier = deque([start])
    while frontier:
        state = frontier.popleft()
        for name, following in steps(state):
            if following in parents:
                continue
            parents[following] = (state, name)
            if is_bad(following):
                return len(parents), _story(parents, following)
            frontier.append(following)
        if limit and len(parents) > limit:
            raise RuntimeError(f"more than {limit} states; make the budgets smaller")
    return len(parents), []


def _story(parents: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    names: list[str] = []
    step = parents[state]
    while step is not None:
        names.append(step[1])
        step = parents[step[0]]
    return names[::-1]
