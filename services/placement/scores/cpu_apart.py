from __future__ import annotations

import numpy as np

from services.placement.policies.base import Policy
from services.placement.scores.base import ColumnScore
from shared.book.arrays import Arrays, Bools, Ints
from shared.book.states import PodState


class CpuApart(ColumnScore):
    """A pod without GPUs leaves the CPU beside GPUs to pods that need both: nodes without GPUs first."""

    name = "cpu-apart"
    weight = 10
    reads = ("request",)

    def rate(self, pod: PodState, policy: Policy, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints | None:
        if policy.alone or pod.request is not None:
            return None
        result: Ints = np.where(arrays.gpu_count[rows] == 0, 1000, 0)
        return result


class FullestCpu(ColumnScore):
    """Of equal nodes the one whose CPU and memory are fuller, so that empty nodes stay empty."""

    name = "fullest-cpu"
    weight = 1

    def rate(self, pod: PodState, policy: Policy, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints | None:
        if policy.alone:
            return None
        cpu = np.maximum(arrays.cpu_free[rows], 0) * 1000 // np.maximum(arrays.cpu_total[rows], 1)
        memory = np.maximum(arrays.memory_free[rows], 0) // np.maximum(arrays.memory_total[rows] // 1000, 1)
        left = np.minimum((cpu + memory) // 2, 1000)
        result: Ints = left if policy.name == "spread" else 1000 - left
        return result
