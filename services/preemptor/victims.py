"""Whom a pod may displace, and what that costs: one look at the book for a round of planning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from shared.book.book import Book
from shared.book.demand import Demand
from shared.book.movable import budgets_of, price_of, why_not
from shared.book.states import NodeState, PodState
from shared.model.grant import GpuShare

Immune = Callable[[PodState], bool]
"""Whether a pod is left alone for a while, for it has just made room for somebody."""


class Candidate(msgspec.Struct, frozen=True):
    """A pod that could give way."""

    priority: int
    price_gpu_ms: int
    uid: str
    demand: Demand
    shares: tuple[GpuShare, ...]
    """On its node."""
    budgets: tuple[str, ...] = ()
    """The PodDisruptionBudgets that it is under."""

    @property
    def cost(self) -> tuple[int, int, str]:
        """The least important first, then the cheapest."""
        return self.priority, self.price_gpu_ms, self.uid


class Candidates:
    """By node, the least first. What has no GPU is left alone: nobody is displaced for CPU."""

    def __init__(self, book: Book, immune: Immune, now: float, promised: Iterable[str] = ()) -> None:
        """`promised`: pods that go by other plans, and that the budgets' statuses do not count yet."""
        self._book, self._immune, self._now = book, immune, now
        self._of: dict[str, tuple[Candidate, ...]] = {}
        self._promised = Counter(name for uid in promised if uid in book.pods for name in budgets_of(book.pods[uid], book))
        self._allowed: dict[str, int] = {}
        """By PodDisruptionBudget."""

    def on(self, node: NodeState, below: int) -> tuple[Candidate, ...]:
        """Those of a lower priority than `below`."""
        found = self._of.get(node.name)
        if found is None:
            made = (self._candidate(state, node.name) for state in node.pods.values() if state.grant_id and not self._spared(state))
            found = self._of[node.name] = tuple(sorted(made, key=lambda c: c.cost))
        return tuple(c for c in found if c.priority < below)

    def lets_go(self, victims: Iterable[Candidate]) -> bool:
        """Whether the disruption budgets let all of these go, after all that were promised before."""
        wanted = Counter(name for victim in victims for name in victim.budgets)
        return all(self._promised[name] + count <= self._allowed[name] for name, count in wanted.items())

    def promise(self, victims: Iterable[Candidate]) -> None:
        """These go by a plan of this round."""
        self._promised.update(name for victim in victims for name in victim.budgets)

    def _spared(self, state: PodState) -> bool:
        return bool(why_not(state, self._book, self._now, leaves=True)) or self._immune(state)

    def _candidate(self, state: PodState, node: str) -> Candidate:
        grant = self._book.grants[state.grant_id].grant
        shares = tuple(share for part in grant.containers.values() for share in part.gpus if share.node == node)
        budgets = budgets_of(state, self._book)
        self._allowed |= budgets
        return Candidate(state.pod.spec.priority, price_of(state, self._book, self._now).price_gpu_ms, state.uid, state.demand, shares, tuple(budgets))
