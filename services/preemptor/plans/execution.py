"""The execution of a plan: proposed, reserved, executed; and in which order its victims are evicted.

A budget may have shrunk since the plan was made. Then the API server denies the eviction, and all pods that were
evicted for the plan before have ended for nothing. So victims under a budget are evicted first, one at a time, the
tightest budget first. The others are evicted only after the API server has accepted those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec

from services.preemptor.planning.beside import Beside
from shared.book.book import Book
from shared.book.disruption_cost import budgets_of
from shared.book.reserved import beyond_victims
from shared.contracts.preemption import ENDS, HeldPlace, Plan, Victim
from shared.model.life import ends_by

ASK_AGAIN_S = 5.0
"""How long after a request the evictions that it left open are requested again."""
NO_ANSWER_S = 60.0
"""How long an answer is awaited at most. The shell gives one within 15 s of sending the request, and at once where it
has lost the lead a moment before and sends none."""


class PlanExecution(msgspec.Struct):
    plan: Plan
    since: float
    proposed_at: float = 0.0
    """When placement was last asked to reserve it."""
    propose_again_at: float | None = None
    """When placement is asked again, because it has not answered; None while an answer is awaited, and after it."""
    requested_at: float = 0.0
    """When its evictions were last requested."""
    asking: bool = False
    """Whether an answer to that is awaited."""
    owners: dict[str, str] = {}
    """The owners of its victims by uid: the replacement of a migrated pod is expected when the pod is gone."""
    places: dict[str, HeldPlace] = {}
    """By uid, what is reserved for its beneficiaries, if it only evicts."""
    executing: bool = False
    victims_left: frozenset[str] = frozenset()
    """Victims whose eviction the API server has not accepted yet."""
    budgeted: tuple[str, ...] = ()
    """Victims under a budget, in the order of their eviction."""

    @property
    def negotiated(self) -> bool:
        """Whether it waits for an answer of placement, or of the API server about an eviction."""
        return not self.executing or bool(self.victims_left)

    def begin(self, book: Book) -> None:
        """Starts the evictions: the plan is reserved.

        Placement itself orders the suspensions, which nodes confirm.
        """
        self.executing = True
        ends = [victim.uid for victim in self.plan.victims if victim.action in ENDS]
        self.victims_left, self.budgeted = frozenset(ends), _under_budgets(ends, book)

    def may_ask(self, now: float) -> bool:
        """Whether evictions that were not accepted are requested now, for the first time or again: not while an answer
        is awaited, for a server that is late would have the more to do."""
        waits_s = NO_ANSWER_S if self.asking else ASK_AGAIN_S
        return self.executing and bool(self.victims_left) and now - self.requested_at >= waits_s

    def beside(self, book: Book) -> Beside | None:
        """Returns what another plan on its nodes has to leave to this one; None if there can be none yet, because not
        all of its victims are seen to end."""
        victims = [state for victim in self.plan.victims if (state := book.pods.get(victim.uid)) is not None]
        if not self.places or self.victims_left or any(ends_by(state.pod) is None for state in victims):
            return None
        gains = [(book.pods.get(b.uid), self.places[b.uid]) for b in self.plan.beneficiaries]
        places = [
            (state.placeholder(f"plan/{state.uid}"), place)
            for state, place in gains
            if state is not None and place.node in book.nodes
        ]
        return Beside(beyond_victims(places, victims), places, self.plan.victims)

    def next_victims(self) -> tuple[Victim, ...]:
        """Returns the victims whose eviction is due."""
        first = next((uid for uid in self.budgeted if uid in self.victims_left), "")
        return tuple(
            victim
            for victim in self.plan.victims
            if victim.uid in self.victims_left and (not first or victim.uid == first)
        )

    def note_accepted(self, uids: Collection[str]) -> bool:
        """Records accepted evictions; returns whether others are due now. A repeated answer changes nothing."""
        before = {victim.uid for victim in self.next_victims()}
        self.victims_left -= frozenset(uids)
        return bool(self.victims_left) and before.isdisjoint(victim.uid for victim in self.next_victims())


def _under_budgets(uids: Collection[str], book: Book) -> tuple[str, ...]:
    """Returns the pods that are under a budget, those with the least slack first.

    Slack is what a budget allows beyond what this plan takes of it.
    """
    budgets = {uid: found for uid in uids if uid in book.pods and (found := budgets_of(book.pods[uid], book))}
    wanted = Counter(name for found in budgets.values() for name in found)
    slack = {uid: min(allowed - wanted[name] for name, allowed in found.items()) for uid, found in budgets.items()}
    return tuple(sorted(slack, key=lambda uid: (slack[uid], uid)))
