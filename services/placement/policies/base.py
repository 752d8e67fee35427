"""What a policy is: it scores nodes on the book's columns, and picks GPUs within the chosen one."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from shared.book.arrays import Arrays, Bools, Ints
from shared.book.shares import GpuRoom
from shared.model.gpu import Inventory
from shared.model.request import GpuAsk

TOP = 1000
"""Scores run from 0 to TOP, higher is better."""


class Policy:
    name: ClassVar[str]

    def score(self, arrays: Arrays, rows: Ints, fit: Bools, ask: GpuAsk) -> Ints:
        """One score a row. `fit` says, for each row and GPU column, whether the ask fits there; a row has at least
        `ask.count` of them, or its score is not used."""
        raise NotImplementedError

    def order(self, ask: GpuAsk, fitting: list[GpuRoom]) -> list[GpuRoom]:
        """The node's fitting GPUs, best first."""
        raise NotImplementedError

    def pick(self, ask: GpuAsk, fitting: list[GpuRoom], inventory: Inventory) -> list[GpuRoom]:  # noqa: ARG002
        return self.order(ask, fitting)[: ask.count]


def used_share(arrays: Arrays, rows: Ints) -> Ints:
    """How much of each node's GPUs is taken, 0 to TOP: the mean over its GPUs of the larger of memory and compute."""
    total = arrays.gpu_total_mib[rows]
    free = np.minimum(np.maximum(arrays.gpu_free_mib[rows], 0) * TOP // np.maximum(total, 1), np.maximum(arrays.gpu_free_milli[rows], 0))
    count = np.maximum(arrays.gpu_count[rows], 1)
    present = total > 0
    result: Ints = TOP - (free * present).sum(axis=1) // count
    return result
