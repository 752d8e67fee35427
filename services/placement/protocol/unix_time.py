"""Seconds since 1970 for the core, whose own clock only spaces repetitions. What is written on pods is in these."""

from __future__ import annotations


class UnixTime:
    """Without a tick that says otherwise the core's clock counts as seconds since 1970."""

    def __init__(self) -> None:
        self._offset_s = 0.0

    def learn(self, unix_s: float | None, now: float) -> None:
        """`unix_s`: seconds since 1970 at this moment of the core's clock; None: not said."""
        if unix_s is not None:
            self._offset_s = unix_s - now

    def at(self, now: float) -> float:
        return now + self._offset_s
