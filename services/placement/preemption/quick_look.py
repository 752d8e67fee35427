"""A quick look at whether the beneficiaries of a plan might fit beside some of its victims, before it is tried in full.

A plan is refused where one of its victims is not needed, and each of them may be that one. To try a plan without one
costs as much as the whole plan; here only the nodes of that victim are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from services.placement.engine.engine import Engine
from services.placement.preemption.reservation import Reservation, leave_to
from services.placement.protocol.suspension import is_suspension
from services.placement.scheduling.trial import Trial
from shared.book.book import Book
from shared.contracts.preemption import Plan


class QuickLook:
    """A trial in which all victims have left and all beneficiaries have their places."""

    def __init__(self, trial: Trial, plan: Plan, nodes_of: dict[str, set[str]]) -> None:
        """`nodes_of`: by uid of a victim, where it has something."""
        self._trial, self._plan, self._nodes_of = trial, plan, nodes_of

    def might_fit_beside(self, staying: Collection[str]) -> bool:
        """Whether the beneficiaries on the nodes of these victims, by uid, fit there although these stay. If not, the
        plan without them would fail there too: on each node the same pods would be tried in the same order."""
        nodes = {name for uid in staying for name in self._nodes_of[uid]}
        here = [b for b in self._plan.beneficiaries if b.node in nodes]
        changes, pods = self._trial.transaction, self._trial.book.pods
        mark = changes.mark
        for beneficiary in here:
            changes.unhold(beneficiary.uid)
        for uid in staying:
            changes.put_back(uid)
        fit = all(self._trial.place_on(pods[b.uid], b.node) is not None for b in here)
        changes.roll_back(mark)
        return fit


def look_at(plan: Plan, engine: Engine, beside: Iterable[Reservation]) -> QuickLook | None:
    """None where nodes cannot be looked at one by one, because other pods or other objects bear on the place of a
    beneficiary, and for plans that suspend or resume. `beside`: the reservations that are left what they need."""
    if any(map(is_suspension, plan.victims)) or any(b.resumes for b in plan.beneficiaries):
        return None
    nodes_of = {victim.uid: _nodes_of(victim.uid, engine.book) for victim in plan.victims}
    trial = Trial(engine)
    leave_to(beside, trial.book)
    for victim in plan.victims:
        trial.transaction.lift(victim.uid)
    for beneficiary in plan.beneficiaries:
        if beneficiary.node not in trial.book.nodes or not engine.is_plain(engine.book.pods[beneficiary.uid]):
            return None
        state = trial.book.add(engine.book.pods[beneficiary.uid])
        if trial.place_on(state, beneficiary.node) is None:
            return None
    placed = [trial.book.pods[b.uid] for b in plan.beneficiaries]
    return QuickLook(trial, plan, nodes_of) if all(map(trial.engine.is_plain, placed)) else None


def _nodes_of(uid: str, book: Book) -> set[str]:
    state = book.pods[uid]
    held = book.grants.get(state.grant_id)
    return {state.charged, *(() if held is None else held.nodes)}
