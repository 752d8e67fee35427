"""How many plans may be under negotiation at once: more while placement and the API server answer soon, fewer if not.

Under load, plans that nobody answers in time are made anew, which is more load. So the number is found as a sender
finds its rate in a network: one more for each quick answer, half for each that is late or missing.
"""

from __future__ import annotations

FIRST = 8
QUICK_S = 1.0
LATE_S = 5.0


class Window:
    def __init__(self, most: int) -> None:
        """`most`: the limit is never above it, and never below 1."""
        self._most = most
        self.limit = min(FIRST, most)

    def answered(self, after_s: float) -> None:
        if after_s <= QUICK_S:
            self.limit = min(self._most, self.limit + 1)
        elif after_s > LATE_S:
            self.unanswered()

    def unanswered(self) -> None:
        self.limit = max(1, self.limit // 2)
