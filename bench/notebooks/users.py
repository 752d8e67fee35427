"""What users of notebooks do: they run a cell, read and write for a while, and run the next one. Pure."""

from __future__ import annotations

from math import exp, log
from random import Random

import msgspec


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """Both times are lognormal: many short ones, and a few that are very long."""

    cell_median_s: float = 60.0
    cell_sigma: float = 1.0
    """The mean is 99 s, and one cell of a hundred takes 10 min or longer."""
    pause_median_s: float = 300.0
    pause_sigma: float = 1.3
    """The mean is 700 s, and one pause of a hundred takes 100 min or longer."""

    def busy_part(self) -> float:
        """The part of its time in which a notebook uses its GPU, if it never waits."""
        cell_s, pause_s = _mean(self.cell_median_s, self.cell_sigma), _mean(self.pause_median_s, self.pause_sigma)
        return cell_s / (cell_s + pause_s)


class User:
    """Draws the times of one user; the same ones for every scheduler."""

    def __init__(self, habits: Habits, seed: str) -> None:
        self._habits, self._random = habits, Random(seed)

    def cell_s(self) -> float:
        return self._random.lognormvariate(log(self._habits.cell_median_s), self._habits.cell_sigma)

    def pause_s(self) -> float:
        return self._random.lognormvariate(log(self._habits.pause_median_s), self._habits.pause_sigma)


def _mean(median: float, sigma: float) -> float:
    return median * exp(sigma * sigma / 2)
