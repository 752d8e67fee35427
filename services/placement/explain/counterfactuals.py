"""Changes of a pod that would make it fit, each tried on the node that it is suggested for. Filters name them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

from services.placement.explain.diagnosis import Diagnosis, Verdicts
from services.placement.explain.steps import Steps
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Counterfactual, Reason
from shared.scheduling.filters import filters
from shared.scheduling.filters.remedies import Change, Remedy

_CODES_MOST = 5
_KINDS_MOST = 3
"""Of one reason: other models, for one, are named so often at most."""
_TRIES_A_KIND = 12


def changes_of_pod(state: PodState, verdicts: Verdicts, book: Book) -> Steps[tuple[Counterfactual, ...]]:
    """For each reason that alone excludes some node, the smallest change found that admits the pod there. Reasons that
    open most nodes first."""
    best: dict[str, tuple[int, Counterfactual]] = {}
    for code, nodes in _alone(verdicts, book):
        tries: Counter[str] = Counter()
        for reason, node in nodes:
            kind = code if reason.lacking else reason.helps
            if tries[kind] < _TRIES_A_KIND and (kind in tries or len(tries) < _KINDS_MOST):
                tries[kind] += 1
                for candidate in changes(state, reason, node):
                    what = kind if code == candidate.code else candidate.code
                    if (what not in best or candidate.size < best[what][0]) and _would_go(candidate.state, node, book):
                        best[what] = (
                            candidate.size,
                            Counterfactual(code=candidate.code, sentence=candidate.sentence, node=node.name),
                        )
                if kind in best:
                    tries[kind] = _TRIES_A_KIND  # it helps as it stands: there is no amount of it that could be less
                yield
    return tuple(found for _, found in best.values())


def changes(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:
    """What might help against one reason on one node, the smallest change first."""
    remedy = _remedies().get(reason.code)
    if remedy is not None:
        yield from remedy(state, reason, node)


@cache
def _remedies() -> dict[str, Remedy]:
    """Of all filters, by the code of the reason."""
    return {code: remedy for one in filters().every for code, remedy in one.remedies.items()}


def _would_go(state: PodState, node: NodeState, book: Book) -> bool:
    return book.nodes.get(node.name) is node and not Diagnosis(state, book).of(node)


def advice(verdicts: Verdicts, book: Book) -> tuple[str, ...]:
    """Suggestions for reasons that cannot be tried: silent agents, missing volumes. One for each reason."""
    return tuple(
        f"{nodes[0][0].helps} ({nodes[0][1].name})"
        for code, nodes in _alone(verdicts, book)
        if code not in _remedies() and nodes[0][0].helps
    )


def _alone(verdicts: Verdicts, book: Book) -> list[tuple[str, list[tuple[Reason, NodeState]]]]:
    """By code, the nodes that this reason alone closes, most first; those of a code by how little is lacking, and how
    much of their GPUs is free."""
    alone: dict[str, list[tuple[Reason, NodeState]]] = {}
    for name, reasons in verdicts.items():
        if len(reasons) == 1 and name in book.nodes:
            alone.setdefault(reasons[0].code, []).append((reasons[0], book.nodes[name]))
    counted = Counter({code: len(nodes) for code, nodes in alone.items()})
    idle = book.arrays.gpu_whole.sum(axis=1)
    free = book.arrays.gpu_free_milli.clip(0).sum(axis=1)

    def order(item: tuple[Reason, NodeState]) -> tuple[int, int, int, str]:
        reason, node = item
        return reason.lacking, -int(idle[node.row]), -int(free[node.row]), node.name

    return [(code, sorted(alone[code], key=order)) for code, _ in counted.most_common(_CODES_MOST)]
