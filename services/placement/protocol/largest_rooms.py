"""The most that is free on any GPU of a node: what needs more of one GPU does not resume there, however it is tried.

On a node that is full hundreds of suspended pods are asked about at each tick.
"""

from __future__ import annotations

from shared.book.book import Book
from shared.book.states import GrantState
from shared.model.grant import sum_shares
from shared.scheduling.moving import Amount

_KEPT_MOST = 10_000


class LargestRooms:
    def __init__(self, book: Book) -> None:
        self._book = book
        self._at = (-1, -1)
        self._most: dict[str, Amount] = {}
        """By node, while the book's GPUs do not change."""
        self._lacks: dict[str, tuple[GrantState, list[tuple[str, Amount]]]] = {}
        """By grant id, for as long as the grant does not change: by node, the most that it has given up of a GPU."""

    def deny(self, held: GrantState) -> bool:
        """Whether a suspended pod has given up more of a GPU than any GPU of that node has free."""
        return any(self._has_less(name, needs) for name, needs in self._given_up(held))

    def _has_less(self, name: str, needs: Amount) -> bool:
        at = (self._book.arrays.cursor, self._book.stamp)
        if at != self._at:
            self._at, self._most = at, {}
        if name not in self._most:
            node = self._book.nodes.get(name)
            rooms = [] if node is None else node.gpus
            mib, milli = max((r.free_mib for r in rooms), default=0), max((r.free_milli for r in rooms), default=0)
            self._most[name] = (mib, milli)
        mib, milli = self._most[name]
        return 0 < needs[0] > mib or 0 < needs[1] > milli

    def _given_up(self, held: GrantState) -> list[tuple[str, Amount]]:
        known = self._lacks.get(held.grant_id)
        if known is not None and known[0] is held:
            return known[1]
        has, most = sum_shares((held.grant,)), dict[str, Amount]()
        for (name, uuid), (mib, milli) in sum_shares((held.given,)).items():
            now_mib, now_milli = has.get((name, uuid), (0, 0))
            most_mib, most_milli = most.get(name, (0, 0))
            most[name] = (max(most_mib, mib - now_mib), max(most_milli, milli - now_milli))
        if len(self._lacks) >= _KEPT_MOST:
            self._lacks.clear()
        self._lacks[held.grant_id] = (held, list(most.items()))
        return self._lacks[held.grant_id][1]
