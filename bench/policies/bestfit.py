from __future__ import annotations

import numpy as np

from services.placement.policies.base import Policy, largest_ask
from shared.book.arrays import Arrays, Bools, Ints
from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.model.request import GpuAsk
from shared.model.units import WHOLE_GPU_MILLI


class BestFit(Policy):
    """The node with the least CPU and GPU left afterwards, each as a fraction of the largest node's, with equal weight;
    on it the GPU with the least left. As in the simulator of "Beware of Fragmentation" (USENIX ATC 2023), a common
    baseline."""

    name = "bestfit"
    alone = True

    def score(self, pod: PodState, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints:
        ask = largest_ask(pod)
        gpu_milli = 0 if ask is None else ask.count * ask.compute_milli
        most_cpu = max(1, int(arrays.cpu_total.max()))
        most_gpu = max(1, int(arrays.gpu_count.max()) * WHOLE_GPU_MILLI)
        cpu_left = arrays.cpu_free[rows] - pod.demand.cpu_milli
        gpu_left = (
            np.where(arrays.gpu_total_mib[rows] > 0, np.maximum(arrays.gpu_free_milli[rows], 0), 0).sum(axis=1)
            - gpu_milli
        )
        result: Ints = ((1.0 - (cpu_left / most_cpu * 0.5 + gpu_left / most_gpu * 0.5)) * 100).astype(np.int64)
        return result

    def order(self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState) -> list[GpuRoom]:
        return sorted(fitting, key=lambda room: (room.free_milli, room.free_mib, room.column))
