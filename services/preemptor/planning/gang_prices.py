"""What a victim costs together with the members of its gang that must end with it, or stop while it is suspended."""

from __future__ import annotations

from shared.book.book import Book
from shared.book.disruption_cost import gpu_milli, price_of
from shared.book.gangs import Gangs
from shared.book.states import PodState


class GangPrices:
    """Prices by gang and subgroup: all members of one subgroup have the same, and there may be thousands."""

    def __init__(self, book: Book, gangs: Gangs) -> None:
        self._book, self._gangs, self._now = book, gangs, 0.0
        self._known: dict[tuple[str, str], int | None] = {}
        """None: a member may end alone."""
        self._milli: dict[str, int] = {}
        """By gang, the GPU milli of its members that have places."""

    def begin(self, now: float) -> None:
        """Forgets all prices: the book may have changed."""
        self._now = now
        self._known.clear()
        self._milli.clear()

    def price_gpu_ms(self, state: PodState, alone_gpu_ms: int) -> int:
        """Returns the price of all that must end with a pod, itself included. `alone_gpu_ms`: its own price."""
        gang = self._gangs.of(state.uid)
        if gang is None or state.uid not in gang.placed:
            return alone_gpu_ms
        at = (gang.key, gang.leaf(state.uid))
        if at not in self._known:
            ends = self._gangs.must_end_with(state.uid)
            self._known[at] = (
                sum(price_of(self._book.pods[uid], self._book, self._now).price_gpu_ms for uid in ends)
                if len(ends) > 1
                else None
            )
        together = self._known[at]
        return alone_gpu_ms if together is None else together

    def gang_milli(self, state: PodState) -> tuple[str, int]:
        """Returns the key of the pod's gang and the GPU milli of its members that have places; no key without one."""
        gang = self._gangs.of(state.uid)
        if gang is None:
            return "", 0
        if gang.key not in self._milli:
            placed = [self._book.pods[uid] for uid in gang.placed if uid in self._book.pods]
            self._milli[gang.key] = sum(gpu_milli(member, self._book) for member in placed)
        return gang.key, self._milli[gang.key]
