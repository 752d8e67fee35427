"""What a score is. One file each; `services/placement/scores/__init__.py` registers scores with their weights.

A score runs from 0 to TOP (1000), higher is better. Scopes:
- `columns`: computed for many nodes at once on the book's arrays.
- `node`: depends on the pod's shape and the Node object alone; cached like a node filter.
- `cluster`: depends on other pods; prepared anew for each decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from services.placement.policies.base import Policy
from shared.book.arrays import Arrays, Bools, Ints
from shared.book.book import Book
from shared.book.states import NodeState, PodState

Rate = Callable[[NodeState], int]


class ColumnScore:
    name: ClassVar[str]
    weight: ClassVar[int] = 1

    def rate(self, pod: PodState, policy: Policy, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints | None:
        """None where it has nothing to say. `fit` is None for a pod without GPUs, else by row and GPU column."""
        raise NotImplementedError


class NodeScore:
    name: ClassVar[str]
    weight: ClassVar[int] = 1

    def prepare(self, pod: PodState, book: Book) -> Rate | None:
        raise NotImplementedError


class ClusterScore(NodeScore):
    pass
