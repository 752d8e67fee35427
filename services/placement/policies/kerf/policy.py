from __future__ import annotations

import numpy as np

from services.placement.free_capacity import gpu_fit
from services.placement.policies.base import OFTEN_UNTIL_PODS, Policy, largest_ask, next_lesson
from services.placement.policies.columns import Ask, Columns, ask_of, columns_of
from services.placement.policies.kerf.fairness import Fairness
from services.placement.policies.kerf.mig import filled_first
from services.placement.policies.kerf.mix import Kind, Mix, accepts
from services.placement.policies.kerf.parameters import blend
from services.placement.policies.kerf.prices import START
from services.placement.policies.kerf.score import TERMS, Tables, cost_terms, rate_gpus, rate_rows
from services.placement.policies.kerf.tables import make_tables
from services.placement.policies.kerf.turnover import Turnover
from shared.book.arrays import Arrays, Bools, Ints
from shared.book.book import Book
from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.model.request import GpuAsk

_ARRIVALS_A_NODE = 1.5


class Kerf(Policy):
    """Places each pod where it costs later pods the least."""

    name = "kerf"
    alone = True

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.mix, self.turnover, self.fairness = Mix(), Turnover(), Fairness()
        self._log_prices = np.full((1, 3), START)
        self._due = 0
        self._met = 0
        self._layout = (-1, -1, -1)
        self._tables = make_tables(book.arrays, self.mix, self.fairness, blend(0.0), self._log_prices)[0]
        self._columns: Columns | None = None
        self._generation = -1
        self._accepts: dict[Kind, Bools] = {}

    def meet(self, pod: PodState, *, placed: bool) -> None:
        self._met += 1
        kind = self.mix.add(pod)
        if placed and kind.ask is not None:
            self.turnover.placed()
        if kind.ask is not None and not (kind.ask.profile and kind.count > 1):
            known = self._accepts.get(kind)
            if known is None or len(known) != len(self.book.arrays.kinds):
                known = self._accepts[kind] = accepts(kind, self.book.arrays)
            self.fairness.meet(kind.count, known, placed=placed)

    def learn(self) -> None:
        """At 1, 2, 4 … 512 pods, and then each time that every node could have met a few; and for new kinds of
        hardware."""
        arrays, layout = self.book.arrays, self._layout_now()
        if self._met < self._due and layout == self._layout:
            return
        self._layout = layout
        self._due = next_lesson(self._met, max(OFTEN_UNTIL_PODS, int(_ARRIVALS_A_NODE * len(self.book.nodes))))
        parameters = blend(self.turnover.look(len(self.book.grants)))
        self._tables, self._log_prices = make_tables(arrays, self.mix, self.fairness, parameters, self._log_prices)
        self._accepts.clear()
        self.edition += 1

    def score(self, pod: PodState, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints:
        if fit is None:
            fit = np.zeros((len(rows), 1), np.bool_)
        return rate_rows(rows, fit, self._view(arrays), self._known(), ask_of(pod))

    def order(self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState) -> list[GpuRoom]:
        if ask.count > 1 and not ask.profile:
            return sorted(
                fitting, key=lambda room: (room.model, room.total_mib, room.free_milli, room.free_mib, room.column)
            )
        arrays = self.book.arrays
        if len(fitting) == 1 or (ask.whole and len(set(arrays.classes[arrays.node_class[node.row]])) == 1):
            return fitting  # whole GPUs of one kind are all the same
        scores = self._scores(pod, ask, fitting, node)
        return sorted(fitting, key=lambda room: (-scores[room.column], room.column))

    def points(self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState) -> list[int] | None:
        if ask.count > 1:
            return None
        scores = self._scores(pod, ask, fitting, node)
        return [int(scores[room.column]) for room in fitting]

    def words(self, pod: PodState, row: int) -> dict[str, int]:
        """The cost in milli-GPU by term, as a gain: less is worse."""
        arrays, ask = self.book.arrays, largest_ask(pod)
        view, known, wanted = self._view(arrays), self._known(), ask_of(pod)
        gpus = np.zeros(0, np.int64)
        if ask is not None:
            fit = gpu_fit(ask, arrays, np.array([row]))[0]
            gpus = np.flatnonzero(fit)[: ask.count]
            if (ask.count == 1 or ask.profile) and len(gpus):
                scores = self._by_gpu(row, fit, wanted)
                gpus = np.array([int(scores.argmax())])
                if ask.count > 1:
                    gpus = filled_first(row, fit, scores, view.gpu_total_mib[row], wanted, view.mig, known.instances)
        terms = np.zeros(len(TERMS))
        cost_terms(row, gpus, view, known, wanted, terms)
        return {name: -round(cost) for name, cost in zip(TERMS, terms.tolist(), strict=True)}

    def _scores(self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState) -> Ints:
        """By GPU column of the node."""
        fit = np.zeros(self.book.arrays.columns, np.bool_)
        fit[[room.column for room in fitting]] = True
        return self._by_gpu(node.row, fit, ask_of(pod, ask))

    def _by_gpu(self, row: int, fit: Bools, ask: Ask) -> Ints:
        """A score by GPU column of the row, UNFIT where it does not fit."""
        arrays = self.book.arrays
        scores = np.zeros(arrays.columns, np.int64)
        rate_gpus(row, fit, self._view(arrays), self._known(), ask, np.zeros(len(TERMS)), scores)
        return scores

    def _view(self, arrays: Arrays) -> Columns:
        if self._columns is None or self._generation != arrays.generation:
            self._columns, self._generation = columns_of(arrays), arrays.generation
        return self._columns

    def _layout_now(self) -> tuple[int, int, int]:
        """The kernels do not check bounds: no table may be smaller than what the columns point at."""
        return len(self.book.arrays.kinds), len(self.book.arrays.classes), len(self.book.arrays.cuts)

    def _known(self) -> Tables:
        if self._layout != self._layout_now():
            self.learn()
        return self._tables
