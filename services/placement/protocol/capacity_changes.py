"""Whether capacity became free since the last check; if so, waiting pods are tried again. Shared by all that free
capacity."""

from __future__ import annotations


class CapacityChanges:
    def __init__(self) -> None:
        self._any = False
        self.count = 0
        """How many there were, for whoever does not want to reset it."""

    def note(self) -> None:
        self._any = True
        self.count += 1

    def taken(self) -> bool:
        """Whether there was a change. Resets it."""
        found, self._any = self._any, False
        return found
