"""Says at once of most suspended pods that no GPU of their node has room for what they gave up of one.

On a node that is full hundreds of suspended pods are asked about at each tick, and many of them gave up the same.
"""

from __future__ import annotations

from shared.book.book import Book
from shared.book.states import GrantState
from shared.model.grant import sum_shares

_KEPT_MOST = 10_000
Need = tuple[str, int, int]
"""Node, memory_mib and compute_milli of one GPU."""


class LargestRooms:
    def __init__(self, book: Book) -> None:
        self._book = book
        self._at = (-1, -1)
        self._fits: dict[Need, bool] = {}
        """Whether one of the node's GPUs has so much free; while no GPU of the book changes."""
        self._needs: dict[str, tuple[GrantState, set[Need]]] = {}
        """By grant id, for as long as the grant does not change."""

    def deny(self, held: GrantState) -> bool:
        """Whether a suspended pod has given up more of a GPU than any GPU of that node has free."""
        at = (self._book.arrays.cursor, self._book.stamp)
        if at != self._at:
            self._at, self._fits = at, {}
        for need in self._given_up(held):
            if need not in self._fits:
                self._fits[need] = self._has(*need)
            if not self._fits[need]:
                return True
        return False

    def _has(self, name: str, mib: int, milli: int) -> bool:
        node = self._book.nodes.get(name)
        return node is not None and any(
            (mib <= 0 or mib <= room.free_mib) and (milli <= 0 or milli <= room.free_milli) for room in node.gpus
        )

    def _given_up(self, held: GrantState) -> set[Need]:
        known = self._needs.get(held.grant_id)
        if known is not None and known[0] is held:
            return known[1]
        has, given = sum_shares((held.grant,)), sum_shares((held.given,))
        nothing = (0, 0)
        found = {
            (name, mib - has.get((name, uuid), nothing)[0], milli - has.get((name, uuid), nothing)[1])
            for (name, uuid), (mib, milli) in given.items()
        }
        if len(self._needs) >= _KEPT_MOST:
            self._needs.clear()
        self._needs[held.grant_id] = (held, found)
        return found
