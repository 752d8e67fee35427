"""What would make a pod fit: changes of the pod itself, each tried on the node that it is said of."""

from __future__ import annotations

from collections import Counter

from services.placement.explaining.steps import Steps
from services.placement.explaining.verdicts import Judge, Verdicts
from services.placement.explaining.wishes import TRIED, wishes
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Counterfactual, Reason

_CODES_MOST = 5
_KINDS_MOST = 3
"""Of one reason: other models, for one, are named so often at most."""
_TRIES_A_KIND = 24


def changes_of_pod(state: PodState, verdicts: Verdicts, book: Book) -> Steps[tuple[Counterfactual, ...]]:
    """For each reason that alone keeps the pod off some node, the least change found that lets it in there. Reasons that
    open most nodes first."""
    found: list[Counterfactual] = []
    for code, nodes in _alone(verdicts, book):
        tries: Counter[str] = Counter()
        helped: set[str] = set()
        said: set[str] = set()
        for reason, node in nodes:
            kind = code if reason.lacking else reason.helps
            if kind in helped or tries[kind] >= _TRIES_A_KIND or len(helped) >= _KINDS_MOST:
                continue
            tries[kind] += 1
            for wish in wishes(state, reason, node):
                what = wish.sentence if wish.code == "gpu-model" else wish.code
                if what not in said and book.nodes.get(node.name) is node and not Judge(wish.state, book).of(node):
                    said.add(what)
                    helped.add(kind)
                    found.append(Counterfactual(code=wish.code, sentence=wish.sentence, node=node.name))
            yield
    return tuple(found)


def advice(verdicts: Verdicts, book: Book) -> tuple[str, ...]:
    """What is said of reasons that nobody can try away: silent agents, missing volumes. One a reason."""
    return tuple(
        f"{nodes[0][0].helps} ({nodes[0][1].name})" for code, nodes in _alone(verdicts, book) if code not in TRIED and nodes[0][0].helps
    )


def _alone(verdicts: Verdicts, book: Book) -> list[tuple[str, list[tuple[Reason, NodeState]]]]:
    """By code, the nodes that this reason alone closes, most first; those of a code by how little is lacking, and how much
    of their GPUs is free."""
    alone: dict[str, list[tuple[Reason, NodeState]]] = {}
    for name, reasons in verdicts.items():
        if len(reasons) == 1 and name in book.nodes:
            alone.setdefault(reasons[0].code, []).append((reasons[0], book.nodes[name]))
    counted = Counter({code: len(nodes) for code, nodes in alone.items()})
    free = book.arrays.gpu_free_milli
    return [
        (code, sorted(alone[code], key=lambda item: (item[0].lacking, -int(free[item[1].row].clip(0).sum()), item[1].name)))
        for code, _ in counted.most_common(_CODES_MOST)
    ]
