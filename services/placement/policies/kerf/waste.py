"""What of a GPU's rest will never be used.

W(r), the expected final waste of a GPU with r milli left, when pods of size s come at rate f_s and a rest is given up
at rate e: W(0) = 0, W(r) = (e r + sum of f_s W(r - s)) / (e + sum of f_s) over the sizes s that still fit. Sizes are
rounded up and rests down to tenths of a percent times ten.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.placement.jit import jit

Floats = npt.NDArray[np.float64]

STEP_MILLI = 10
STEPS = 100


@jit
def expected_waste(rates: Floats, give_up: float) -> Floats:
    """W in milli-GPU by step of rest (0 to STEPS). `rates`: share of arrivals by step of size."""
    waste = np.zeros(STEPS + 1)
    for rest in range(1, STEPS + 1):
        above, below = give_up * rest * STEP_MILLI, give_up
        for size in range(1, rest + 1):
            if rates[size] > 0.0:
                above += rates[size] * waste[rest - size]
                below += rates[size]
        waste[rest] = above / below
    return waste
