"""Whether something has become free since somebody last looked: then those who wait are tried again. One for all that free something."""

from __future__ import annotations


class CapacityChanges:
    def __init__(self) -> None:
        self._any = False

    def note(self) -> None:
        self._any = True

    def taken(self) -> bool:
        """Whether there was anything; from now on there is not."""
        found, self._any = self._any, False
        return found
