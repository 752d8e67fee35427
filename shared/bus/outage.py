"""What is logged while NATS is away: a line at the start, one per growing interval with a count, and one at the end."""

from __future__ import annotations

FIRST_S = 5.0
GROWTH = 2.0
MAX_S = 300.0


class Outage:
    """Counts the errors of an outage. Pure: the caller passes the time, in seconds of any steady clock, and logs."""

    def __init__(self) -> None:
        self.errors = 0
        """Since the outage began."""
        self._began: float | None = None
        self._interval = FIRST_S
        self._next = 0.0

    @property
    def going_on(self) -> bool:
        return self._began is not None

    def begin(self, now: float) -> bool:
        """Whether this is the beginning, to be logged."""
        if self._began is not None:
            return False
        self._began, self.errors, self._interval = now, 0, FIRST_S
        self._next = now + FIRST_S
        return True

    def error(self, now: float) -> bool:
        """Counts an error. Whether it is time to log that the outage goes on."""
        self.errors += 1
        if now < self._next:
            return False
        self._interval = min(self._interval * GROWTH, MAX_S)
        self._next = now + self._interval
        return True

    def seconds(self, now: float) -> float:
        """How long it has lasted."""
        return 0.0 if self._began is None else round(now - self._began, 1)

    def end(self) -> None:
        self._began = None
