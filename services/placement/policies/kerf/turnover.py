"""How much of what is given comes back: 0 while a cluster only fills, 1 where as many pods end as begin."""

from __future__ import annotations

from math import exp

_MEMORY_PODS = 2000.0


class Turnover:
    def __init__(self) -> None:
        self.value = 0.0
        self._placed = 0
        self._held = 0

    def placed(self) -> None:
        self._placed += 1

    def look(self, held: int) -> float:
        """`held`: grants on the book now. Those that were placed since the last look and are not more now came back."""
        if self._placed:
            back = min(1.0, max(0.0, (self._placed - (held - self._held)) / self._placed))
            keep = exp(-self._placed / _MEMORY_PODS)
            self.value = keep * self.value + (1 - keep) * back
        self._placed, self._held = 0, held
        return self.value
