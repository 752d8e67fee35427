from __future__ import annotations

from services.placement.policies import POLICIES
from services.placement.scores.base import ColumnScore
from shared.book.arrays import Arrays, Bools, Ints
from shared.book.states import PodState


class GpuPolicy(ColumnScore):
    """What the GPU policy in force (binpack, spread, …) thinks of each node, by the pod's largest ask."""

    name = "gpu-policy"
    weight = 10

    def rate(self, pod: PodState, policy: str, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints | None:
        if pod.request is None or fit is None:
            return None
        ask = max(pod.request.asks.values(), key=lambda a: (a.whole, a.count, a.memory_mib, a.compute_milli))
        return POLICIES[policy].score(arrays, rows, fit, ask)
