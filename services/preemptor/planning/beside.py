"""What a plan in progress leaves to another plan on its nodes. Pure.

The other plan has to fit while the victims of the first are there, and must end no pod that would be needless once they
are gone: so it is tried on the book as it is, and checked on the book as it will be.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from shared.book.book import Book
from shared.book.fork import Fork
from shared.book.reserved import ReservedPlace
from shared.contracts.preemption import Victim
from shared.model.grant import sum_shares


class Beside(msgspec.Struct, frozen=True):
    """Of a plan whose victims are ending."""

    places: list[ReservedPlace]
    """What its beneficiaries need beyond what its victims still have."""
    whole: list[ReservedPlace]
    """All that they need."""
    victims: tuple[Victim, ...]


def book_as_it_is(book: Book, others: Sequence[Beside]) -> Fork:
    """Returns the book with what these plans need. Their GPUs are closed to others, as placement closes them."""
    fork = Fork(book)
    for other in others:
        for node, uuid in _reserve(fork, other.places):
            fork.close_gpu(node, uuid, "it is reserved for another pod")
    return fork


def book_as_it_will_be(book: Book, others: Sequence[Beside]) -> Fork:
    """Returns the book when these plans are done."""
    fork = Fork(book)
    for other in others:
        for victim in other.victims:
            state = fork.pods.get(victim.uid)
            if state is not None and state.grant_id == victim.grant_id:
                fork.lift(victim.uid)
            else:
                fork.release(victim.grant_id)
        _reserve(fork, other.whole)
    return fork


def _reserve(fork: Fork, places: Sequence[ReservedPlace]) -> Collection[tuple[str, str]]:
    """Returns the GPUs, by node and uuid."""
    there = [(placeholder, place) for placeholder, place in places if place.node in fork.nodes]
    for placeholder, place in there:
        fork.reserve(placeholder, place.node, place.grant)
    return sum_shares(place.grant for _, place in there if place.grant is not None)
