"""One reservation: a plan with the places that are booked for its beneficiaries, and what other plans leave to it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shared.book.fork import Fork
from shared.book.reserved import beyond_victims
from shared.book.states import PodState
from shared.contracts.log import ReservationRecord
from shared.contracts.preemption import HeldPlace, Plan
from shared.model.grant import sum_shares


class Reservation(msgspec.Struct):
    plan: Plan
    places: dict[str, HeldPlace]
    placeholders: list[PodState]
    """The placeholder pods of the beneficiaries."""
    since: float
    until: float
    logged: bool = False
    changed: bool = False
    """The plan differs from the proposal: some victims do not fit elsewhere and are evicted instead of moved."""
    resuming: bool = False
    """Its suspended beneficiaries resume: all of what they gave up is booked to them."""
    closing: bool = False
    """It was given up, and an order to checkpoint a victim may still be written. Until that is over it stays open in
    the log, and its host memory booked. Its places are booked until the log says that it was given up: before that a
    new leader would go on with it."""
    answered: bool = False
    """The preemptor was told to evict: all suspensions of the plan are done."""
    ending: dict[str, float] = {}
    """By uid of victims that have been deleted: until when to wait, which is the grace period plus `STUCK_S`."""

    @property
    def shown_places(self) -> dict[str, HeldPlace]:
        """The places beside which other plans may be made."""
        return {b.uid: self.places[b.uid] for b in self.plan.beneficiaries} if self.plan.only_evicts else {}

    def record(self, term: int, *, over: bool = False) -> ReservationRecord:
        """Without places it says that the plan is over, or was given up: no leader goes on with it."""
        return ReservationRecord(
            term=term, plan=self.plan, places={} if over or self.closing else self.places, over=over
        )


def leave_to(others: Iterable[Reservation], book: Fork) -> set[tuple[str, str]]:
    """Lets these have what they need in `book`, whichever plan is done first. Returns the GPUs that are reserved for
    them, by node and uuid: if two plans shared one, the one that is done first might not fit there."""
    taken: set[tuple[str, str]] = set()
    for other in others:
        victims = [book.pods[v.uid] for v in other.plan.victims if v.uid in book.pods]
        kept = [(placeholder, other.places[placeholder.kept_for]) for placeholder in other.placeholders]
        for placeholder, _ in kept:
            book.unreserve(placeholder)
        for placeholder, place in beyond_victims(kept, victims):
            book.reserve(placeholder, place.node, place.grant)
            taken |= set() if place.grant is None else sum_shares([place.grant]).keys()
    return taken
