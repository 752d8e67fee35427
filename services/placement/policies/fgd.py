"""Fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC 2023), as published."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.placement.jit import jit
from services.placement.policies.base import Policy
from services.placement.policies.columns import Ask, Columns, ask_of, columns_of, rest_after, rest_milli
from services.placement.policies.kerf.mix import Kind, Mix, accepts, milli_on
from shared.book.arrays import Arrays, Bools, Ints
from shared.book.book import Book
from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.model.request import GpuAsk

Floats = npt.NDArray[np.float64]

TYPICAL = 0.95
"""Kinds of pods are typical until they make up this much of all."""
_EVERY_PODS = 512


class Typical(NamedTuple):
    cpu_milli: Ints
    milli: Ints
    gpus: Ints
    accepts: Bools
    """Typical pods x GPU kinds."""
    part: Floats


@jit
def fragmentation(cpu_free: int, rests: Ints, kind: int, typical: Typical) -> float:
    """Expected milli-GPU of a node that a typical pod cannot use: all of it where the pod cannot run there, else the GPUs
    that are too small for it."""
    total = float(rests.sum())
    result = 0.0
    for pod in range(typical.part.size):
        lost = total
        if typical.gpus[pod] > 0 and cpu_free >= typical.cpu_milli[pod] and typical.accepts[pod, kind]:
            fitting, small = 0, 0.0
            for rest in rests:
                if rest >= typical.milli[pod]:
                    fitting += 1
                else:
                    small += rest
            if fitting >= typical.gpus[pod]:
                lost = small
        result += typical.part[pod] * lost
    return result


@jit
def fragmented(rows: Ints, columns: Columns, typical: Typical) -> float:
    """Of all these nodes together, in milli-GPU."""
    result = 0.0
    for row in rows:
        rests = np.zeros(columns.gpu_count[row], np.int64)
        for gpu in range(rests.size):
            rests[gpu] = rest_milli(columns.gpu_free_mib[row, gpu], columns.gpu_free_milli[row, gpu], columns.gpu_total_mib[row, gpu])
        result += fragmentation(columns.cpu_free[row], rests, columns.gpu_kind[row, 0], typical)
    return result


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
            free_mib, free_milli, total = columns.gpu_free_mib[row, gpu], columns.gpu_free_milli[row, gpu], columns.gpu_total_mib[row, gpu]
            rests[gpu], after[gpu] = rest_milli(free_mib, free_milli, total), rest_after(free_mib, free_milli, total, ask)
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
    """The node on which the pod raises least what typical pods could no longer use. The yardstick to beat.

    The published one is given the typical pods of the whole trace (`expect`); in service they are learned.
    """

    name = "fgd"
    alone = True

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self._mix = Mix()
        self._given: list[Kind] = []
        self.typical = _typical(self._mix, book.arrays)
        self._met = self._due = 0
        self._kinds = 0

    def expect(self, pods: list[PodState]) -> None:
        """The pods of all time, known beforehand."""
        mix = Mix()
        for pod in pods:
            mix.add(pod)
        self._mix, self._given = mix, list(mix.counts)
        self.typical = _typical(mix, self.book.arrays)

    def meet(self, pod: PodState, *, placed: bool) -> None:  # noqa: ARG002
        if not self._given:
            self._mix.add(pod)
            self._met += 1

    def learn(self) -> None:
        kinds = len(self.book.arrays.kinds)
        if self._met < self._due and self._kinds == kinds:
            return
        self._due, self._kinds = max(2 * self._met, 1) if self._met < _EVERY_PODS else self._met + _EVERY_PODS, kinds
        self.typical = _typical(self._mix, self.book.arrays)
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


def _typical(mix: Mix, arrays: Arrays) -> Typical:
    """By CPU, share, count and GPU model (host memory plays no part), the most frequent first, cut at TYPICAL."""
    groups: dict[tuple[int, int, int, bytes], float] = {}
    takes: dict[bytes, Bools] = {}
    most_mib = int(arrays.gpu_total_mib.max())
    for kind, count in mix.counts.items():
        accepted = accepts(kind, arrays)
        takes[accepted.tobytes()] = accepted
        milli = 0 if kind.ask is None else 1000 if kind.ask.whole else milli_on(kind.ask, most_mib)
        key = (kind.cpu_milli, milli, kind.count, accepted.tobytes())
        groups[key] = groups.get(key, 0.0) + count
    kept, seen = [], 0.0
    for key, count in sorted(groups.items(), key=lambda item: -item[1]):
        if seen >= TYPICAL * mix.total:
            break
        kept.append((key, count))
        seen += count
    return Typical(
        np.array([key[0] for key, _ in kept], np.int64), np.array([key[1] for key, _ in kept], np.int64),
        np.array([key[2] for key, _ in kept], np.int64),
        np.array([takes[key[3]] for key, _ in kept], np.bool_).reshape(len(kept), len(arrays.kinds)),
        np.array([count / seen for _, count in kept], np.float64),
    )  # fmt: skip
