"""Pods of equal request share one shape, and a shape one row of scores over all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import NamedTuple, cast

import msgspec
import numpy as np

from services.placement.engine.node_classes import NodeClasses, needs_node_identity
from services.placement.free_capacity import fits_room
from services.placement.policies.base import POLICY_READS, Policy
from services.placement.scores import scores
from services.placement.scores.base import EXCLUDED, NodeScore, Rate, Score
from shared.book.arrays import Bools, Ints
from shared.book.book import Book
from shared.book.states import PodState
from shared.scheduling.fields import reduced, union, values_of
from shared.scheduling.filters import Check, Filter, filters

INFEASIBLE = -(1 << 62)
"""Below every score, which may be negative."""

_ENCODER = msgspec.json.Encoder(order="deterministic")


ENGINE_READS = ("demand", "request", "pod.spec.node_selector", "pod.spec.affinity.node_affinity")
"""What the engine itself reads: free capacity, and whether the pod needs one certain node."""


@cache
def shape_fields() -> tuple[str, ...]:
    """All that decides a pod's row: what the engine, policies, node filters, node scores and column scores declare."""
    readers: tuple[Filter | Score, ...] = (*filters().node, *scores().node, *scores().columns)
    return union(ENGINE_READS, POLICY_READS, *(reader.reads for reader in readers))


def shape_key(state: PodState) -> bytes:
    """Equal for pods of one shape, which have equal rows."""
    return _ENCODER.encode(values_of(state, shape_fields()))


def shape_of(state: PodState) -> PodState:
    """The pod reduced to its shape."""
    return cast(PodState, reduced(state, shape_fields(), "the engine"))


class _Prepared(NamedTuple):
    checks: list[Check]
    rates: list[tuple[int, Rate]]


class Row:
    """One shape's score on every node, INFEASIBLE where it does not fit.

    `refresh` computes only nodes that changed.
    """

    BYTES_A_NODE = 25

    def __init__(self, sample: PodState, policy: Policy, book: Book, node_classes: NodeClasses | None = None) -> None:
        self.sample, self.policy, self.book = shape_of(sample), policy, book
        self.node_classes = node_classes or NodeClasses(book)
        self._columns = [(one, self._reduced(one)) for one in scores().columns]
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
        for column_score, sample in self._columns:
            part = column_score.rate(sample, self.policy, self.book.arrays, rows, fit)
            if part is not None:
                score = score + column_score.weight * part
        self.total[rows] = np.where(score <= EXCLUDED, INFEASIBLE, score) if self.sample.adaptive else score

    def _recheck_nodes(self, rows: Ints) -> None:
        """Node filters and node scores, only where the Node object, the inventory or the agent's state moved."""
        stamps = self.book.arrays.stamp
        stale = rows[stamps[rows] != self.versions[rows]]
        if stale.size == 0:
            return
        self.versions[stale] = stamps[stale]
        classes = stale if needs_node_identity(self.sample) else self.node_classes.by_row()[stale]
        _, first, which = np.unique(classes, return_index=True, return_inverse=True)
        shared = self._prepare(in_classes=True)
        verdicts = np.array([self._verdict(int(row), shared) for row in stale[first]], np.int64)
        self.passes[stale], self.preference[stale] = verdicts[which, 0] > 0, verdicts[which, 1]
        own = self._prepare(in_classes=False)
        if any(own):
            verdicts = np.array([self._verdict(int(row), own) for row in stale], np.int64)
            self.passes[stale] &= verdicts[:, 0] > 0
            self.preference[stale] += verdicts[:, 1]

    @cached_property
    def _node_filters(self) -> list[tuple[Filter, PodState]]:
        """Each with what it may read of the pod. Made when nodes are checked: a trial's row mostly checks none."""
        return [(one, self._reduced(one)) for one in filters().node]

    @cached_property
    def _node_scores(self) -> list[tuple[NodeScore, PodState]]:
        return [(one, self._reduced(one)) for one in scores().node]

    def _prepare(self, *, in_classes: bool) -> _Prepared:
        """The node filters and node scores that are checked once in each class of nodes, or the others."""
        checks = [
            check
            for one, sample in self._node_filters
            if (one.reads_node is not None) is in_classes and (check := one.prepare(sample, self.book)) is not None
        ]
        rates = [
            (one.weight, rate)
            for one, sample in self._node_scores
            if (one.reads_node is not None) is in_classes and (rate := one.prepare(sample, self.book)) is not None
        ]
        return _Prepared(checks, rates)

    def _reduced(self, reader: Filter | Score) -> PodState:
        """The shape reduced to what a filter or score declares."""
        return cast(PodState, reduced(self.sample, reader.reads, f"{type(reader).__name__} ({reader.name})"))

    def _verdict(self, row: int, prepared: _Prepared) -> tuple[int, int]:
        """Whether the node in this row passes the node filters (1 or 0), and the sum of its node scores."""
        name = self.book.row_names[row]
        if not name:
            return 0, 0
        node = self.book.nodes[name]
        passes = all(check(node) is None for check in prepared.checks)
        return int(passes), sum(weight * rate(node) for weight, rate in prepared.rates)
