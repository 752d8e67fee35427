"""Pods of equal request share one shape, and a shape one row of scores over all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np

from services.placement.engine.node_classes import NodeClasses, needs_node_identity
from services.placement.free_capacity import fits_room
from services.placement.policies.base import Policy
from services.placement.scores import COLUMN_SCORES, NODE_SCORES
from services.placement.scores.base import Rate
from shared.book.arrays import Bools, Ints
from shared.book.book import Book
from shared.book.states import PodState
from shared.scheduling.filters import NODE_FILTERS, Check

INFEASIBLE = -(1 << 62)
"""Below every score, which may be negative."""

_ENCODER = msgspec.json.Encoder(order="deterministic")


class _Only:
    """Some fields of a pod. Reading another one raises AttributeError that says where to declare it."""

    def __init__(self, what: str, **fields: Any) -> None:
        self.__dict__.update(fields, _what=what)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self._what}.{name} is not part of a pod's shape, by which its row is cached: add it to _fields and "
            "shape_of in services/placement/engine/shape.py, or give the filter or score the scope `cluster`"
        )


def _fields(state: PodState) -> tuple[Any, ...]:
    """All that decides a pod's row: demand, request, node selector, node affinity, tolerations."""
    spec = state.pod.spec
    node_affinity = spec.affinity.node_affinity if spec.affinity else None
    return state.demand, state.request, spec.node_selector, node_affinity, spec.tolerations


def shape_key(state: PodState) -> bytes:
    """Equal for pods of one shape, which have equal rows."""
    return _ENCODER.encode(_fields(state))


def shape_of(state: PodState) -> PodState:
    """The pod reduced to its shape: all that node filters, node scores, column scores and policies can read of it."""
    demand, request, node_selector, node_affinity, tolerations = _fields(state)
    affinity = None if node_affinity is None else _Only("spec.affinity", node_affinity=node_affinity)
    spec = _Only("spec", node_selector=node_selector, affinity=affinity, tolerations=tolerations)
    return cast(PodState, _Only("pod", demand=demand, request=request, pod=_Only("pod", spec=spec)))


class Row:
    """One shape's score on every node, INFEASIBLE where it does not fit.

    `refresh` computes only nodes that changed.
    """

    BYTES_A_NODE = 25

    def __init__(self, sample: PodState, policy: Policy, book: Book, node_classes: NodeClasses | None = None) -> None:
        self.sample, self.policy, self.book = shape_of(sample), policy, book
        self.node_classes = node_classes or NodeClasses(book)
        self.generation = self.edition = -1
        self.cursor = -1
        self.passes: Bools = np.zeros(0, np.bool_)
        self.preference: Ints = np.zeros(0, np.int64)
        self.total: Ints = np.zeros(0, np.int64)
        self.versions: Ints = np.zeros(0, np.int64)

    def refresh(self) -> Ints:
        """Brings the row up to date and returns it."""
        arrays = self.book.arrays
        changed: Sequence[int] | None = None
        if self.generation == arrays.generation and self.edition == self.policy.edition:
            changed = arrays.since(self.cursor)
        if changed is None:
            if self.generation != arrays.generation:
                self._allocate()
            self.edition = self.policy.edition
            changed = range(len(self.book.row_names))
        self.cursor = arrays.cursor
        if changed:
            self._recompute(np.array(changed, np.int64))
        return self.total

    def _allocate(self) -> None:
        rows = self.book.arrays.rows
        self.generation = self.book.arrays.generation
        self.passes = np.zeros(rows, np.bool_)
        self.preference = np.zeros(rows, np.int64)
        self.total = np.full(rows, INFEASIBLE, np.int64)
        self.versions = np.zeros(rows, np.int64)

    def _recompute(self, rows: Ints) -> None:
        self._recheck_nodes(rows)
        room, fit = fits_room(self.sample, self.book.arrays, rows)
        self.total[rows] = INFEASIBLE
        feasible = self.passes[rows] & room
        rows = rows[feasible]
        if rows.size == 0:
            return
        fit = None if fit is None else fit[feasible]
        score = self.preference[rows]
        for column_score in COLUMN_SCORES:
            part = column_score.rate(self.sample, self.policy, self.book.arrays, rows, fit)
            if part is not None:
                score = score + column_score.weight * part
        self.total[rows] = score

    def _recheck_nodes(self, rows: Ints) -> None:
        """Node filters and node scores, only where the Node object, the inventory or the agent's state moved."""
        stamps = self.book.arrays.stamp
        stale = rows[stamps[rows] != self.versions[rows]]
        if stale.size == 0:
            return
        checks = [c for f in NODE_FILTERS if (c := f.prepare(self.sample, self.book)) is not None]
        rates = [(s.weight, r) for s in NODE_SCORES if (r := s.prepare(self.sample, self.book)) is not None]
        self.versions[stale] = stamps[stale]
        classes = stale if needs_node_identity(self.sample) else self.node_classes.by_row()[stale]
        _, first, which = np.unique(classes, return_index=True, return_inverse=True)
        verdicts = np.array([self._verdict(int(row), checks, rates) for row in stale[first]], np.int64)
        self.passes[stale], self.preference[stale] = verdicts[which, 0] > 0, verdicts[which, 1]

    def _verdict(self, row: int, checks: list[Check], rates: list[tuple[int, Rate]]) -> tuple[int, int]:
        """Whether the node in this row passes the node filters (1 or 0), and the sum of its node scores."""
        name = self.book.row_names[row]
        if not name:
            return 0, 0
        node = self.book.nodes[name]
        return int(all(check(node) is None for check in checks)), sum(weight * rate(node) for weight, rate in rates)
