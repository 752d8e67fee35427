"""The clock that the core goes by: seconds since 1970, because records of protection outlive the process."""

from __future__ import annotations

import time
from collections.abc import Callable

HELD_S = 1.0
"""By so much the machine's clock may be set back unnoticed: meanwhile the core's stands still."""


class ClockSetBack(Exception):
    """The machine's clock was set back: what the core waits for would come that much later."""


class WallClock:
    def __init__(self, read: Callable[[], float] = time.time) -> None:
        self._read = read
        self._latest = read()

    @property
    def latest(self) -> float:
        """The time that was told last."""
        return self._latest

    def now(self) -> float:
        """Returns the time, never an earlier one than before. Raises ClockSetBack."""
        now = self._read()
        if now < self._latest - HELD_S:
            raise ClockSetBack(f"this machine's clock was set back by {self._latest - now:.0f} s")
        self._latest = max(now, self._latest)
        return self._latest
