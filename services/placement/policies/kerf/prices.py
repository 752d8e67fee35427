"""What CPU, memory and GPUs are worth on each class of nodes, in milli-GPU.

A market that settles by itself (soft tatonnement): pods of each shape go to classes in proportion to their CPU there
and to exp(-cost / tau), or to nowhere at the cost of what they ask; where more is asked than there is the price rises,
where less it falls. Prices start from the last ones. They keep pods without GPU constraints off what pods with them
need, and CPU-heavy pods off nodes whose GPUs need their CPU.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shared.book.arrays import Bools

Floats = npt.NDArray[np.float64]

CPU_UNIT_MILLI = 12_000
MEMORY_UNIT_BYTES = 49_152 << 20
START = np.log(0.2)
_ROUNDS = 60
_FIRST_STEP = 0.5
_LEAST_GPUS = 0.3
_LOW, _HIGH = -6.0, 1.0
_TINY = 1e-9


def settle(
    log_prices: Floats,
    supply: Floats,
    need: Floats,
    demand: Floats,
    accepts: Bools,
    optional: Bools,
    temperature: float,
) -> Floats:
    """New log prices, classes x (cpu, memory, gpu).

    `supply`: the same shape, in units; `need`: shapes x 3, in units a pod; `demand`: pods by shape; `accepts`: shapes x
    classes; `optional`: shapes that may also go nowhere (those with GPUs).
    """
    # einsum and no matrix product: BLAS adds up in an order that changes from run to run, and so would the decisions.
    gpus = need[:, 2]
    tau = temperature * np.maximum(gpus, _LEAST_GPUS)
    weight = np.where(accepts, supply[:, 0][None, :], 0.0)
    nowhere = np.where(optional, np.exp(-gpus / tau) * np.maximum(weight.sum(axis=1), _TINY), 0.0)
    result = log_prices
    for turn in range(_ROUNDS):
        cost = np.einsum("sr,cr->sc", need, np.exp(result))
        drawn = weight * np.exp(-cost / tau[:, None])
        part = drawn / np.maximum(drawn.sum(axis=1) + nowhere, 1e-300)[:, None]
        used = np.einsum("sc,sr->cr", part * demand[:, None], need) / np.maximum(supply, _TINY)
        step = _FIRST_STEP * (1 - turn / _ROUNDS)
        result = np.clip(result + step * (np.minimum(2.0, used) - 1), _LOW, _HIGH)
    return result
