"""Checks PodDisruptionBudgets and hourly budgets of namespaces at the time of planning. Pure.

Candidates are prepared in advance, but what a budget allows changes with each pod that ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from services.preemptor.planning.candidate import Candidate
from shared.book.book import Book
from shared.book.disruption_cost import budgets_of
from shared.model.affinity import LabelSelector
from shared.model.objects import PodDisruptionBudget

HOURLY = "evictions of this hour"
"""The name of a namespace's own budget (`evictions_per_hour`) among the others. No object can have it."""
EvictionsLeft = Callable[[str], int | None]
"""Returns how many pods of a namespace may still be evicted in this hour; None for no limit."""


class Budgets:
    def __init__(self, book: Book, left: EvictionsLeft) -> None:
        self._book, self._left = book, left
        self._selectors: dict[str, tuple[str, LabelSelector | None]] = {}
        """By budget, its namespace and selector at the last call of `changed_namespaces`."""
        self._of: dict[str, dict[str, int]] = {}
        """The budgets of each pod in this round, by uid."""
        self._promised: Counter[str] = Counter()
        self.spent: frozenset[str] = frozenset()
        """Budgets that allow no further eviction in this round."""

    def changed_namespaces(self) -> set[str]:
        """Returns the namespaces with a new, removed or differently selecting budget since the last call."""
        now = {name: (budget.metadata.namespace, budget.spec.selector) for name, budget in self._all().items()}
        before, self._selectors = self._selectors, now
        return {
            (now.get(name) or before[name])[0]
            for name in now.keys() | before.keys()
            if now.get(name) != before.get(name)
        }

    def begin(self, promised: Iterable[str]) -> None:
        """Starts a planning round.

        `promised`: uids of victims of plans that the budgets' statuses do not count yet.
        """
        self._of.clear()
        self._promised = Counter(name for uid in promised if uid in self._book.pods for name in self.of(uid))
        self._spend()

    def of(self, uid: str) -> Mapping[str, int]:
        """Returns the budgets that select a pod, with the number of disruptions that each allows."""
        if uid not in self._of:
            namespace = self._book.pods[uid].pod.metadata.namespace
            left = self._left(namespace)
            hourly = {} if left is None else {f"{namespace}/{HOURLY}": left}
            self._of[uid] = budgets_of(self._book.pods[uid], self._book) | hourly
        return self._of[uid]

    def allow_evictions(self, victims: Collection[Candidate]) -> bool:
        """Whether all of these may be evicted, in addition to all that were promised before.

        Victims that are not evicted count against no budget.
        """
        allowed: dict[str, int] = {}
        wanted: Counter[str] = Counter()
        for victim in victims:
            if victim.action == "evict":
                allowed |= self.of(victim.uid)
                wanted.update(self.of(victim.uid).keys())
        return all(self._promised[name] + count <= allowed[name] for name, count in wanted.items())

    def promise(self, victims: Iterable[Candidate]) -> None:
        self._promised.update(name for victim in victims if victim.action == "evict" for name in self.of(victim.uid))
        self._spend()

    def _spend(self) -> None:
        self.spent = frozenset(
            name for name, budget in self._all().items() if budget.status.disruptions_allowed <= self._promised[name]
        )

    def _all(self) -> dict[str, PodDisruptionBudget]:
        found: dict[str, PodDisruptionBudget] = self._book.others.get("PodDisruptionBudget", {})
        return found
