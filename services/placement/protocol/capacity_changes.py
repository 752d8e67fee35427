"""Whether capacity became free since the last check; if so, waiting pods are tried again. Shared by all that free
capacity."""

from __future__ import annotations


class CapacityChanges:
    def __init__(self) -> None:
        self._any = False

    def note(self) -> None:
        self._any = True

    def taken(self) -> bool:
        """Whether there was a change. Resets it."""
        found, self._any = self._any, False
        return found
