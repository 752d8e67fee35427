"""Nodes that plans have just closed to other plans, and pods for which they may be open again in a moment. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.preemptor.pending_pods import SOON_S
from services.preemptor.planning.fitting import admits
from services.preemptor.planning.victims import Candidates
from services.preemptor.plans.execution import PlanExecution
from shared.book.book import Book
from shared.book.states import PodState
from shared.contracts.preemption import Plan

OPENED_WITHIN_S = 10.0
"""A plan that is older, and still closes its nodes, waits for something that takes longer."""
NODES_AGAIN = 1_500
"""How many nodes are examined again every `SOON_S` for pods that found no option, so that a long queue of them costs no
more than a short one; one pod is looked at in any case."""


class OpeningNodes:
    def __init__(self, book: Book, candidates: Candidates) -> None:
        self._book, self._candidates = book, candidates
        self._nodes: set[str] = set()
        self._since, self._left = float("-inf"), 0

    def begin(self, closing: Iterable[PlanExecution], now: float) -> None:
        """Starts a planning round. `closing`: the plans beside which none can be made now."""
        self._nodes.clear()
        for one in closing:
            if now - one.since < OPENED_WITHIN_S:
                self.add(one.plan)

    def add(self, plan: Plan) -> None:
        """A plan of this round."""
        if plan.only_evicts:
            self._nodes |= {b.node for b in plan.beneficiaries if b.node in self._book.nodes}

    def may_be_open_soon(self, members: Sequence[PodState], now: float) -> bool:
        """Whether pods without an option, one or those of a gang, are looked at again soon, because they might preempt
        others on one of these nodes."""
        if now - self._since >= SOON_S:
            self._since, self._left = now, max(1, NODES_AGAIN // max(1, len(self._book.nodes)))
        if self._left <= 0 or not self._nodes:
            return False
        is_admitted, nodes = admits(members[0], self._book), (self._book.nodes[name] for name in self._nodes)
        if not any(is_admitted(node) and self._candidates.on(node, members[0]) for node in nodes):
            return False
        self._left -= len(members)
        return True
