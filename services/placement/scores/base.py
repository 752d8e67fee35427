"""What a score is. One file each; `services/placement/scores/__init__.py` registers scores with their weights.

A score runs from 0 to TOP (1000), higher is better. Scopes:
- `ColumnScore`: computed for many nodes at once on the book's arrays.
- `NodeScore`: depends on declared fields of the pod and on the node alone; cached like a node filter.
- `ClusterScore`: depends on other pods; prepared anew for each decision.

`reads` and `reads_node` are as in `shared.scheduling.filters.base.Filter`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from services.placement.policies.base import Policy
from shared.book.arrays import Arrays, Bools, Ints
from shared.book.book import Book
from shared.book.states import NodeState, PodState

Rate = Callable[[NodeState], int]
EXCLUDED = -(1 << 40)
"""What a ColumnScore may give a node that a filter of scope `cluster` excludes for a weighed pod (PodState.adaptive),
as long as nothing changes there: the filter need not look at it again for each decision."""


class Score:
    name: ClassVar[str]
    weight: ClassVar[int] = 1
    reads: ClassVar[tuple[str, ...]] = ()
    """Of a ColumnScore or NodeScore: the fields of the pod that it reads."""
    reads_node: ClassVar[tuple[str, ...] | None] = None
    """Of a NodeScore: the further fields of the node that it reads; None: every node is rated by itself."""


class ColumnScore(Score):
    def rate(self, pod: PodState, policy: Policy, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints | None:
        """None where it has nothing to say. `fit` is None for a pod without GPUs, else by row and GPU column."""
        raise NotImplementedError


class NodeScore(Score):
    def prepare(self, pod: PodState, book: Book) -> Rate | None:
        """The rate of a node for this pod, or None where the score has nothing to say about it."""
        raise NotImplementedError


class ClusterScore(Score):
    def prepare(self, pod: PodState, book: Book) -> Rate | None:
        """As NodeScore.prepare; `book` says where the other pods are."""
        raise NotImplementedError
