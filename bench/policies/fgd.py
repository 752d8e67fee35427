"""Fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC 2023), as published."""

from __future__ import annotations

import numpy as np

from bench.policies.fragmentation import Typical, fragmentation, typical_of
from services.placement.jit import jit
from services.placement.policies.base import OFTEN_UNTIL_PODS, Policy, next_lesson
from services.placement.policies.columns import Ask, Columns, ask_of, columns_of, rest_after, rest_milli
from services.placement.policies.kerf.mix import Kind, Mix, kind_of
from shared.book.arrays import Arrays, Bools, Ints
from shared.book.book import Book
from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.model import names
from shared.model.request import GpuAsk


@jit
def gradient(before: float, after: float) -> int:
    """A step in fragmentation as the published score: 0 to 100 by a sigmoid, cut to an integer."""
    return int(100.0 / (1.0 + np.exp(-(before - after) / 1000.0)))


@jit
def rate_rows(rows: Ints, fit: Bools, columns: Columns, ask: Ask, typical: Typical, by_gpu: Ints) -> Ints:
    """A score by row; `by_gpu` gets those of the last row's GPUs, for an ask of a part of one."""
    result = np.full(rows.size, -1)
    for place in range(rows.size):
        row = rows[place]
        rests, after = np.zeros(columns.gpu_count[row], np.int64), np.zeros(columns.gpu_count[row], np.int64)
        for gpu in range(rests.size):
            free_mib, free_milli, total = (
                columns.gpu_free_mib[row, gpu],
                columns.gpu_free_milli[row, gpu],
                columns.gpu_total_mib[row, gpu],
            )
            rests[gpu], after[gpu] = (
                rest_milli(free_mib, free_milli, total),
                rest_after(free_mib, free_milli, total, ask),
            )
        kind, cpu_left = columns.gpu_kind[row, 0], columns.cpu_free[row] - ask.cpu_milli
        before = fragmentation(columns.cpu_free[row], rests, kind, typical)
        if ask.gpus == 1 and not ask.whole:
            for gpu in range(rests.size):
                by_gpu[gpu] = -1
                if fit[place, gpu]:
                    rest, rests[gpu] = rests[gpu], after[gpu]
                    by_gpu[gpu] = gradient(before, fragmentation(cpu_left, rests, kind, typical))
                    rests[gpu] = rest
                    result[place] = max(result[place], by_gpu[gpu])
            continue
        taken = 0
        for gpu in range(rests.size):
            if taken < ask.gpus and fit[place, gpu]:
                rests[gpu] = after[gpu]
                taken += 1
        result[place] = gradient(before, fragmentation(cpu_left, rests, kind, typical))
    return result


class Fgd(Policy):
    """The node on which the pod raises least what typical pods could no longer use. The policy to beat.

    The published one is given the typical pods of the whole trace (`expect`); in service they are learned.
    """

    name = "fgd"
    alone = True

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self._mix = Mix()
        self._given: list[tuple[Kind, str, float]] = []
        self.typical = typical_of((), book.arrays)
        self._met = self._due = 0
        self._kinds = 0

    def expect(self, pods: list[PodState]) -> None:
        """The pods of all time, known beforehand."""
        self._given = [
            (kind_of(pod), pod.pod.metadata.annotations.get(names.ANNOTATION_GPU_MODEL, ""), 1.0) for pod in pods
        ]
        self.typical = typical_of(self._given, self.book.arrays)

    def meet(self, pod: PodState, *, placed: bool) -> None:
        if not self._given:
            self._mix.add(pod)
            self._met += 1

    def learn(self) -> None:
        kinds = len(self.book.arrays.kinds)
        if self._met < self._due and self._kinds == kinds:
            return
        self._due, self._kinds = next_lesson(self._met, OFTEN_UNTIL_PODS), kinds
        learned = (
            (kind, "|".join(kind.gpu_constraints.models) if kind.gpu_constraints else "", count)
            for kind, count in self._mix.counts.items()
        )
        self.typical = typical_of(self._given or learned, self.book.arrays)
        self.edition += 1

    def score(self, pod: PodState, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints:
        return self._rate(pod, arrays, rows, fit, np.zeros(arrays.columns, np.int64))

    def order(self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState) -> list[GpuRoom]:
        if ask.whole or ask.count > 1:
            return sorted(fitting, key=lambda room: room.column)
        fit = np.zeros((1, self.book.arrays.columns), np.bool_)
        fit[0, [room.column for room in fitting]] = True
        scores = np.zeros(self.book.arrays.columns, np.int64)
        self._rate(pod, self.book.arrays, np.array([node.row]), fit, scores)
        return sorted(fitting, key=lambda room: (-scores[room.column], room.column))

    def _rate(self, pod: PodState, arrays: Arrays, rows: Ints, fit: Bools | None, by_gpu: Ints) -> Ints:
        if self._kinds != len(arrays.kinds):
            self.learn()
        if fit is None:
            fit = np.zeros((len(rows), arrays.columns), np.bool_)
        return rate_rows(rows, fit, columns_of(arrays), ask_of(pod), self.typical, by_gpu)
