"""Takes a few nodes at a time, in turn, whatever comes and goes: work that has no hurry must not delay decisions."""

from __future__ import annotations

from collections.abc import Iterable


class Rota:
    def __init__(self, every_s: float) -> None:
        """`every_s`: a turn over all nodes begins no more often than this."""
        self._every_s = every_s
        self._left: list[str] = []
        self._next_turn = float("-inf")

    def next(self, nodes: Iterable[str], count: int, now: float) -> list[str]:
        """The next `count` names. A turn is over the nodes that there are when it begins."""
        if not self._left and now >= self._next_turn:
            self._left, self._next_turn = list(nodes), now + self._every_s
        taken, self._left = self._left[:count], self._left[count:]
        return taken
