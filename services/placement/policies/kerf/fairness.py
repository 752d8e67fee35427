"""Which pods are rejected. Whole groups are kept for large pods as long as small ones hardly pay for it.

By GPU kind, the rates at which pods of one GPU (or of a part of one) and pods of two that would take it find no place
at their first try. While few of one are refused, groups have their full weight; from TURNED_AWAY on the weak one; where
they are refused OFTEN none, for even a little of it decides between equals and lets large pods in at the cost of all
others. Pairs keep the weak one, and weigh the more, the more pods of two are refused: any single pod tears a pair.
"""

from __future__ import annotations

from math import exp

import numpy as np
import numpy.typing as npt

from services.placement.policies.kerf.parameters import OFTEN, PAIRS_REFUSED, TURNED_AWAY, Parameters
from shared.book.arrays import Bools

Floats = npt.NDArray[np.float64]

_MEMORY_PODS = (3000.0, 60.0)
"""Pods of one, and of two, of which there are few."""
_FORGET_PODS = 65_536.0
"""Pods of one after which those of two that came no more are forgotten, as in `mix`."""


class Fairness:
    def __init__(self) -> None:
        self.refused = np.zeros((len(_MEMORY_PODS), 0))
        """By GPUs asked for, less one, and GPU kind: the rate, 0 to 1."""
        self._keep = [exp(-1 / pods) for pods in _MEMORY_PODS]
        self._forget = exp(-1 / _FORGET_PODS)

    def meet(self, gpus: int, accepts: Bools, *, placed: bool) -> None:
        """A pod has been tried. `accepts`: the GPU kinds that it would take. Pods without GPUs and of more than two
        tell nothing."""
        if not 1 <= gpus <= len(_MEMORY_PODS):
            return
        if len(accepts) > self.refused.shape[1]:
            self.refused = self.rates(len(accepts))
        part, keep = self.refused[gpus - 1, : len(accepts)], self._keep[gpus - 1]
        part[accepts] *= keep
        if not placed:
            part[accepts] += 1 - keep
        if gpus == 1:
            self.refused[1, : len(accepts)][accepts] *= self._forget

    def rates(self, kinds: int) -> Floats:
        """By GPUs asked for, less one, and GPU kind."""
        result = np.zeros((len(_MEMORY_PODS), kinds))
        known = min(kinds, self.refused.shape[1])
        result[:, :known] = self.refused[:, :known]
        return result


def fair_groups(scarce: Floats, rates: Floats, parameters: Parameters) -> Floats:
    """GPU kinds x sizes of group, as `group_value` takes them. `scarce`: by size, see `scarcity`; `rates`: see
    Fairness."""
    one, two = rates
    few = np.interp(one, (0, TURNED_AWAY), (parameters.strong_groups, parameters.weak_groups))
    groups: Floats = scarce[None, :] * (few * np.interp(one, (TURNED_AWAY, OFTEN), (1, 0)))[:, None]
    groups[:, 2] = parameters.pairs * np.maximum(few * scarce[2], np.minimum(1.0, two / PAIRS_REFUSED))
    groups[:, 0] = parameters.open_groups * np.interp(one, (0, TURNED_AWAY), (1, 0))
    return groups
