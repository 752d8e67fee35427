"""Who is turned away. Whole groups are kept for large pods as long as small ones hardly pay for it.

By GPU kind, the rate at which pods of one GPU (or of a part of one) that would take it find no place at their first
try. While it is near nothing, groups have their full weight; from TURNED_AWAY on, the weak one.
"""

from __future__ import annotations

from math import exp

import numpy as np
import numpy.typing as npt

from services.placement.policies.kerf.parameters import TURNED_AWAY
from shared.book.arrays import Bools

Floats = npt.NDArray[np.float64]

_MEMORY_PODS = 3000.0


class Fairness:
    def __init__(self) -> None:
        self.refused = np.zeros(0)
        self._keep = exp(-1 / _MEMORY_PODS)

    def meet(self, accepts: Bools, *, placed: bool) -> None:
        """A pod of one GPU has been tried. `accepts`: the GPU kinds that it would take."""
        if len(accepts) > len(self.refused):
            self.refused = np.concatenate([self.refused, np.zeros(len(accepts) - len(self.refused))])
        part = self.refused[: len(accepts)]
        part[accepts] *= self._keep
        if not placed:
            part[accepts] += 1 - self._keep

    def pressure(self, kinds: int) -> Floats:
        """By GPU kind, 0 (nobody small is turned away) to 1."""
        result = np.zeros(kinds)
        known = min(kinds, len(self.refused))
        result[:known] = np.minimum(1.0, self.refused[:known] / TURNED_AWAY)
        return result
