"""How long a Binding is waited for before it is sent again."""

from __future__ import annotations

LEAST_S, MOST_S = 5.0, 30.0


class BindingTime:
    """Longer while Bindings take longer, because a repetition costs a slow API server as much as a Binding. Estimated
    as TCP does its time-out (RFC 6298)."""

    def __init__(self) -> None:
        self._mean_s = self._deviation_s = 0.0

    def took(self, seconds: float) -> None:
        """From the first time that it was sent until the pod was seen bound."""
        if self._mean_s:
            self._deviation_s += (abs(seconds - self._mean_s) - self._deviation_s) / 4
            self._mean_s += (seconds - self._mean_s) / 8
        else:
            self._mean_s, self._deviation_s = seconds, seconds / 2

    @property
    def limit_s(self) -> float:
        return min(max(LEAST_S, self._mean_s + 4 * self._deviation_s), MOST_S)
