"""A plan on its way: proposed, reserved, carried out. Whose eviction is asked for when.

A budget may have shrunk since the plan was made, and then the API server says no: all that has ended for the plan by then has
ended for nothing. So whoever is under a budget is asked first, one at a time, the tightest budget first, and all others only
when the API server has taken those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec

from shared.book.book import Book
from shared.book.disruption_cost import budgets_of
from shared.contracts.preemption import ENDS, Plan, Victim


class PlanExecution(msgspec.Struct):
    plan: Plan
    since: float
    asked_at: float = 0.0
    """When evictions of it were last asked for."""
    owners: dict[str, str] = {}
    """Of its victims: of those who move the next pod is awaited when they themselves have gone."""
    executing: bool = False
    victims_left: frozenset[str] = frozenset()
    """Victims whose eviction the API server has not taken yet."""
    one_by_one: tuple[str, ...] = ()
    """Victims under a budget, in their order."""

    def begin(self, book: Book) -> None:
        """It is reserved. Whoever only gives something up is told so by placement, which hears of it from the node."""
        self.executing = True
        ends = [victim.uid for victim in self.plan.victims if victim.action in ENDS]
        self.victims_left, self.one_by_one = frozenset(ends), _under_budgets(ends, book)

    def turn(self) -> tuple[Victim, ...]:
        """Whose eviction is to be asked for now."""
        first = next((uid for uid in self.one_by_one if uid in self.victims_left), "")
        return tuple(
            victim
            for victim in self.plan.victims
            if victim.uid in self.victims_left and (not first or victim.uid == first)
        )

    def taken(self, uids: Collection[str]) -> bool:
        """The API server has taken these; whether others are to be asked for now. An answer that is heard twice opens nothing."""
        before = {victim.uid for victim in self.turn()}
        self.victims_left -= frozenset(uids)
        return bool(self.victims_left) and before.isdisjoint(victim.uid for victim in self.turn())


def _under_budgets(uids: Collection[str], book: Book) -> tuple[str, ...]:
    """Those of them under a budget, the tightest first: what its budgets allow beyond what the plan takes of them."""
    budgets = {uid: found for uid in uids if uid in book.pods and (found := budgets_of(book.pods[uid], book))}
    wanted = Counter(name for found in budgets.values() for name in found)
    slack = {uid: min(allowed - wanted[name] for name, allowed in found.items()) for uid, found in budgets.items()}
    return tuple(sorted(slack, key=lambda uid: (slack[uid], uid)))
