from __future__ import annotations

import numpy as np

from services.placement.policies.base import TOP, Policy, used_share
from shared.book.arrays import Arrays, Bools, Ints
from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.model.request import GpuAsk

_MANY = 1 << 30


class Spread(Policy):
    """The least-loaded GPU first. Load is the number of containers bound to it, for NVML misses those without a
    process."""

    name = "spread"

    def score(self, pod: PodState, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints | None:
        if pod.request is None or fit is None:
            return None
        load = np.where(fit, arrays.gpu_containers[rows], _MANY).min(axis=1)
        result: Ints = (3 * (TOP // (1 + load)) + (TOP - used_share(arrays, rows))) // 4
        return result

    def order(self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState) -> list[GpuRoom]:
        return sorted(fitting, key=lambda room: (room.containers, -room.free_mib, room.index))
