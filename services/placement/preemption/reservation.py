"""One reservation: a plan with the places that are booked for its beneficiaries, and what other plans leave to it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shared.book.book import Book
from shared.book.fork import Fork
from shared.book.reserved import beyond_victims, reserve_closed
from shared.book.states import PodState
from shared.contracts.log import ReservationRecord
from shared.contracts.preemption import HeldPlace, Plan


class Reservation(msgspec.Struct):
    plan: Plan
    places: dict[str, HeldPlace]
    placeholders: list[PodState]
    """The placeholder pods of the beneficiaries."""
    since: float
    until: float
    logged: bool = False
    beside: bool = False
    """Other plans may be made on its nodes, if they can be beside others too."""
    changed: bool = False
    """The plan differs from the proposal: some victims do not fit elsewhere and are evicted instead of moved."""
    resuming: bool = False
    """Its suspended beneficiaries resume: all of what they gave up is booked to them."""
    awaits_volumes: bool = False
    """Its victims are gone, and volumes of its beneficiaries are being made on their nodes."""
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
        return {b.uid: self.places[b.uid] for b in self.plan.beneficiaries} if self.beside else {}

    def record(self, term: int, *, over: bool = False) -> ReservationRecord:
        """Without places it says that the plan is over, or was given up: no leader goes on with it."""
        return ReservationRecord(
            term=term, plan=self.plan, places={} if over or self.closing else self.places, over=over
        )


def can_be_beside(plan: Plan, book: Book) -> bool:
    """Whether other plans may be in progress on its nodes. Not if a beneficiary has to be near another pod: it could be
    near one that another plan places later, or ends."""
    states = [state for b in plan.beneficiaries if (state := book.pods.get(b.uid)) is not None]
    return plan.only_evicts and not any(state.attracted for state in states)


def leave_to(others: Iterable[Reservation], book: Fork) -> None:
    """Lets these have what they need in `book`, whichever plan is done first, and their GPUs for themselves."""
    for other in others:
        victims = [book.pods[v.uid] for v in other.plan.victims if v.uid in book.pods]
        kept = [(placeholder, other.places[placeholder.kept_for]) for placeholder in other.placeholders]
        for placeholder, _ in kept:
            book.unreserve(placeholder)
        reserve_closed(book, beyond_victims(kept, victims))
