"""What a plan in progress leaves to another plan on its nodes. Pure.

The other plan has to fit while the victims of the first are there, and must end no pod that would be needless once they
are gone: so it is tried on the book as it is, and checked on the book as it will be.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shared.book.book import Book
from shared.book.fork import Fork
from shared.book.reserved import ReservedPlace, reserve_closed
from shared.contracts.preemption import Victim
from shared.scheduling.transaction import Transaction


class Beside(msgspec.Struct, frozen=True):
    """Of a plan with victims that are ending."""

    places: list[ReservedPlace]
    """What its beneficiaries need beyond what its victims still have."""
    whole: list[ReservedPlace]
    """All that they need."""
    victims: tuple[Victim, ...]


def book_as_it_is(book: Book, others: Sequence[Beside]) -> Fork:
    """Returns the book with what these plans need, as placement books it."""
    fork = Fork(book)
    for other in others:
        reserve_closed(fork, other.places)
    return fork


def book_as_it_will_be(book: Book, others: Sequence[Beside]) -> Fork:
    """Returns the book when these plans are done."""
    fork = Fork(book)
    ending = Transaction(fork)
    for other in others:
        for victim in other.victims:
            ending.end(victim.uid, victim.grant_id)
        for placeholder, place in other.whole:
            fork.reserve(placeholder, place.node, place.grant)
    return fork
