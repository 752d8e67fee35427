"""Whole groups of free GPUs, for pods of several.

A node with f free GPUs holds floor(f / k) whole groups of k, each worth 1000 k milli times a weight h_k; where things
end, a group that is not whole counts too, the more the nearer it is: weight times (fraction) ^ 1.75.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.placement.jit import jit
from services.placement.policies.kerf.parameters import OPEN_EXPONENT
from shared.book.arrays import Ints

Floats = npt.NDArray[np.float64]

MOST = 8
"""Larger pods count as this many: no common machine has more GPUs."""
LEAST_SHARE = 0.3
"""Sizes that few ask for are not forgotten altogether."""


@jit
def group_value(free: int, gpus: int, weights: Floats) -> float:
    """In milli-GPU. `weights` by size of group; weights[0] is what a group that is not whole counts for."""
    value = 0.0
    for size in range(2, MOST + 1):
        if weights[size] > 0.0 and size <= gpus:
            value += weights[size] * 1000.0 * size * (free // size)
            if weights[0] > 0.0:
                value += weights[size] * weights[0] * 1000.0 * size * ((free % size) / size) ** OPEN_EXPONENT
    return value


def scarcity(share: Floats, free: Ints, rest_milli: float, by_share: float) -> Floats:
    """h by size of group, 0 to 1: whole groups are worth most where pods that need them ask for more than there is.

    `share`: of all GPUs asked for, the part asked for by pods of k whole GPUs; `free`: by node; `rest_milli`: all that
    is left on GPUs. h_k = min(1, share_k rest / milli in whole groups of k)^2, times (share_k of all groups'
    share)^by_share, but never less than LEAST_SHARE of that.
    """
    weights = np.zeros(MOST + 1)
    several = float(share[2:].sum())
    for size in range(2, MOST + 1):
        if share[size] > 0:
            whole = 1000.0 * size * float((free // size).sum())
            pressed = 1.0 if whole == 0 else min(1.0, share[size] * rest_milli / whole)
            weights[size] = pressed**2 * max(LEAST_SHARE, (share[size] / several) ** by_share)
    return weights
