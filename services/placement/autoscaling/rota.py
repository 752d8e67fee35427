"""Takes a few nodes at a time, in turn, whatever comes and goes: work that has no hurry must not delay decisions."""

from __future__ import annotations

from collections.abc import Iterable


class Rota:
    def __init__(self) -> None:
        self._left: list[str] = []

    def next(self, nodes: Iterable[str], count: int) -> list[str]:
        """The next `count` names; after the last one it begins anew with `nodes` as they are then."""
        if not self._left:
            self._left = list(nodes)
        taken, self._left = self._left[:count], self._left[count:]
        return taken
