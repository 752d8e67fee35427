"""Every reason of every filter, for every node."""

from __future__ import annotations

from services.placement.explaining.steps import Steps
from services.placement.filters import CLUSTER_FILTERS, NODE_FILTERS, ROOM_FILTERS
from services.placement.filters.gpus import GpuKind, GpuRoomLeft
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason

Verdicts = dict[str, tuple[Reason, ...]]
"""By node, empty where the pod fits."""

_NODES_A_STEP = 16
_APART = (GpuKind.name, GpuRoomLeft.name)


class Judge:
    """All filters for one pod on a book as it stands. What is left on GPUs is only asked where their kind would do."""

    def __init__(self, state: PodState, book: Book) -> None:
        filters = (*NODE_FILTERS, *ROOM_FILTERS, *CLUSTER_FILTERS)
        self._checks = [c for f in filters if f.name not in _APART and (c := f.prepare(state, book)) is not None]
        self._kind, self._left = GpuKind().prepare(state, book), GpuRoomLeft().prepare(state, book)

    def of(self, node: NodeState) -> tuple[Reason, ...]:
        """Why the pod cannot go there; empty where it can."""
        gpu = None if self._kind is None else self._kind(node)
        if gpu is None and self._left is not None:
            gpu = self._left(node)
        reasons = tuple(r for check in self._checks if (r := check(node)) is not None)
        return reasons if gpu is None else (gpu, *reasons)


def judge_all(state: PodState, book: Book) -> Steps[Verdicts]:
    """As of the last step: nodes that change meanwhile are looked at again."""
    verdicts: Verdicts = {}
    cursor, judge = book.arrays.cursor, Judge(state, book)
    for count, name in enumerate(list(book.nodes)):
        if count % _NODES_A_STEP == _NODES_A_STEP - 1:
            yield
        node = book.nodes.get(name)
        if node is not None and node.object is not None:
            verdicts[name] = judge.of(node)
    changed = book.arrays.since(cursor)
    if changed is None or changed:
        judge = Judge(state, book)
    for row in range(len(book.row_names)) if changed is None else changed:
        name = book.row_names[row]
        node = book.nodes.get(name)
        if node is not None and node.object is not None:
            verdicts[name] = judge.of(node)
    return {name: reasons for name, reasons in verdicts.items() if name in book.nodes and book.nodes[name].object is not None}
