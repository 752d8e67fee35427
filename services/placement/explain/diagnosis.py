"""Every reason of every filter, for every node."""

from __future__ import annotations

from typing import Any

from services.placement.explain.steps import Steps
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.scheduling.filters import filters
from shared.scheduling.filters.gpus import GpuKind, GpuRoomLeft

Verdicts = dict[str, tuple[Reason, ...]]
"""By node, empty where the pod fits."""

_NODES_A_STEP = 16
_APART = (GpuKind.name, GpuRoomLeft.name)


class Diagnosis:
    """All filters for one pod on the book as it stands. Free capacity of GPUs is checked only if their kind would
    do."""

    def __init__(self, state: PodState, book: Book) -> None:
        self._checks = [
            c for f in filters().every if f.name not in _APART and (c := f.prepare(state, book)) is not None
        ]
        self._kind, self._left = GpuKind().prepare(state, book), GpuRoomLeft().prepare(state, book)
        request, self._arrays = state.request, book.arrays
        choosy = request is not None and (request.uuids or request.uuids_not or request.topology)
        self._alike = not choosy and not book.arrays.any_mig
        self._said: dict[tuple[Any, ...], Reason | None] = {}

    def of(self, node: NodeState) -> tuple[Reason, ...]:
        """Why the pod cannot go there; empty where it can."""
        gpu = self._of_gpus(node)
        reasons = tuple(r for check in self._checks if (r := check(node)) is not None)
        return reasons if gpu is None else (gpu, *reasons)

    def _of_gpus(self, node: NodeState) -> Reason | None:
        if self._kind is None or self._left is None:
            return None
        key = self._state_of(node)
        if key is not None and key in self._said:
            return self._said[key]
        reason = self._kind(node) or self._left(node)
        if key is not None:
            self._said[key] = reason
        return reason

    def _state_of(self, node: NodeState) -> tuple[Any, ...] | None:
        """All that reasons about GPUs look at: on a large cluster many nodes are in the same state, and full. None
        where there is more to it."""
        if not self._alike or node.inventory is None or not node.gpus or node.gpus[-1].index >= len(node.gpus):
            return None
        if not all(room.usable and not room.kept for room in node.gpus):
            return None
        a, row = self._arrays, node.row
        columns = (a.gpu_kind[row], a.gpu_free_mib[row], a.gpu_free_milli[row], a.gpu_containers[row])
        return (
            len(node.gpus),
            node.agent_trouble,
            node.inventory.strategies,
            *(column.tobytes() for column in columns),
        )


def judge_all(state: PodState, book: Book) -> Steps[Verdicts]:
    """As of the last step: nodes that change meanwhile are looked at again."""
    verdicts: Verdicts = {}
    cursor, diagnosis = book.arrays.cursor, Diagnosis(state, book)
    for count, name in enumerate(list(book.nodes)):
        if count % _NODES_A_STEP == _NODES_A_STEP - 1:
            yield
        node = book.nodes.get(name)
        if node is not None and node.object is not None:
            verdicts[name] = diagnosis.of(node)
    changed = book.arrays.since(cursor)
    if changed is None or changed:
        diagnosis = Diagnosis(state, book)
    for row in range(len(book.row_names)) if changed is None else changed:
        name = book.row_names[row]
        node = book.nodes.get(name)
        if node is not None and node.object is not None:
            verdicts[name] = diagnosis.of(node)
    return {
        name: reasons
        for name, reasons in verdicts.items()
        if name in book.nodes and book.nodes[name].object is not None
    }
