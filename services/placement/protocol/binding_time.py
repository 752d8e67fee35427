"""How long a Binding is waited for before it is sent again."""

from __future__ import annotations

LEAST_S, MOST_S = 5.0, 30.0
HOLDS_S = 60.0
"""An estimate of an hour ago says nothing of now, and an outage must not slow down what comes after it."""


class BindingTime:
    """Longer while Bindings take longer, because a repetition costs a slow API server as much as a Binding. Estimated
    as TCP does its time-out (RFC 6298), but from the first time that it was sent, also where it was sent again: it is
    not known which of them was carried out, and too long does less harm."""

    def __init__(self) -> None:
        self._mean_s = self._deviation_s = 0.0
        self._at = float("-inf")

    def took(self, seconds: float, now: float) -> None:
        """From the first time that it was sent until the pod was seen bound."""
        seconds = min(seconds, MOST_S)
        if now - self._at < HOLDS_S:
            self._deviation_s += (abs(seconds - self._mean_s) - self._deviation_s) / 4
            self._mean_s += (seconds - self._mean_s) / 8
        else:
            self._mean_s, self._deviation_s = seconds, seconds / 2
        self._at = now

    def limit_s(self, now: float) -> float:
        if now - self._at >= HOLDS_S:
            return LEAST_S
        return min(max(LEAST_S, self._mean_s + 4 * self._deviation_s), MOST_S)
