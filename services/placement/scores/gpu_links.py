from __future__ import annotations

from math import log10
from typing import cast

import numpy as np

from services.placement.policies.base import TOP, Policy
from services.placement.scores.base import ColumnScore
from shared.book.arrays import Arrays, Bools, Ints
from shared.book.states import PodState
from shared.model.request import PodRequest
from shared.scheduling.topology import Fabric, fabric_of, near_of
from shared.scheduling.topology.ring import best_ring_mb_s

_FAST_MB_S = 1_000_000
_SLOW_MB_S = 1_000
_IF_UNSAID = 50


class GpuLinks(ColumnScore):
    """For pods of several GPUs, by the best ring among the GPUs that are free for it.

    A pod that names kerf.dev/topology goes where that ring is fastest, each tenfold of bandwidth counting the same. One
    that does not goes, with a fiftieth of the weight, where the ring is nearest to the best that such a machine can
    give: enough to leave a torn node alone, and not to crowd the fastest machines.
    """

    name = "gpu-links"
    weight = 20
    reads = ("request",)

    def rate(self, pod: PodState, policy: Policy, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints | None:
        if pod.request is None or fit is None:
            return None
        size = max(ask.count for ask in pod.request.asks.values())
        if size < 2:
            return None
        points = np.zeros(len(rows), np.int64)
        packed = np.packbits(fit, axis=1, bitorder="little")
        for place, row in enumerate(rows.tolist()):
            inventory = arrays.inventories.get(row)
            if inventory is not None:
                fitting = int.from_bytes(packed[place].tobytes(), "little")
                points[place] = _points(fabric_of(inventory), fitting, size, pod.request)
        return points


def _points(fabric: Fabric, fitting: int, size: int, request: PodRequest) -> int:
    key = ("links", fitting, size, request.topology)
    known = fabric.memo.get(key)
    if known is None:
        mb_s = best_ring_mb_s(fabric, fitting, size, near=near_of(request))
        if request.topology and request.topology != "host":
            known = int(TOP * log10(max(mb_s, _SLOW_MB_S) / _SLOW_MB_S) / log10(_FAST_MB_S / _SLOW_MB_S))
        else:
            best = best_ring_mb_s(fabric, (1 << fabric.count) - 1, size)
            known = TOP * mb_s // best // _IF_UNSAID if best else 0
        fabric.memo[key] = known
    return cast(int, known)
