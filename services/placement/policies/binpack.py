from __future__ import annotations

import numpy as np

from services.placement.policies.base import TOP, Policy, largest_ask, used_share
from shared.book.arrays import Arrays, Bools, Ints
from shared.book.shares import GpuRoom, share_on
from shared.book.states import NodeState, PodState
from shared.model.request import GpuAsk


class Binpack(Policy):
    """Fills what is in use: the GPU on which the least is left afterwards, then the node that is fullest already. Keeps
    whole GPUs and empty nodes free for pods that need them."""

    name = "binpack"

    def score(self, pod: PodState, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints | None:
        ask = largest_ask(pod)
        if ask is None or fit is None:
            return None
        packed = used_share(arrays, rows)
        if ask.whole:
            return packed
        free_milli = arrays.gpu_free_milli[rows]
        left = np.maximum(arrays.gpu_free_mib[rows] * TOP // np.maximum(arrays.gpu_total_mib[rows], 1), free_milli)
        tightest = np.where(fit, left, TOP).min(axis=1)
        result: Ints = (3 * (TOP - tightest) + packed) // 4
        return result

    def order(self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState) -> list[GpuRoom]:
        return sorted(fitting, key=lambda room: (_left(ask, room), room.index))


def _left(ask: GpuAsk, room: GpuRoom) -> int:
    memory_mib, compute_milli = share_on(ask, room.total_mib)
    return max((room.free_mib - memory_mib) * TOP // max(1, room.total_mib), room.free_milli - compute_milli)
