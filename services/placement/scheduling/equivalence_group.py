"""Pods of one shape, which are tried and set aside as a whole."""

from __future__ import annotations

import heapq

Entry = tuple[int, str, int, str]
"""Priority, highest first; creation; arrival; uid."""


class EquivalenceGroup:
    """Pods of one shape, best first. `unschedulable`: its head did not fit, and nothing has changed since that could
    help."""

    def __init__(self, key: bytes, plain: bool, queue: str) -> None:
        self.key, self.plain, self.queue = key, plain, queue
        self.unschedulable = False
        self._heap: list[Entry] = []
        """The head is always there; of the others those that are gone stay for a while."""
        self._gone: set[str] = set()
        """By uid."""
        self._new: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._heap) - len(self._gone)

    @property
    def head(self) -> Entry:
        return self._heap[0]

    @property
    def members(self) -> list[Entry]:
        """In no order but for the head."""
        return [entry for entry in self._heap if entry[3] not in self._gone] if self._gone else self._heap

    def add(self, entry: Entry) -> None:
        if entry[3] in self._gone:
            self._drop_gone()
        heapq.heappush(self._heap, entry)
        self._new[entry[3]] = None

    def take_new(self) -> list[str]:
        """The uids of the pods that have come since this was last asked."""
        new, self._new = self._new, {}
        return list(new)

    def take_out(self, uid: str) -> None:
        """Thousands of one shape may be deleted together: each costs little."""
        self._new.pop(uid, None)
        if self.head[3] != uid:
            self._gone.add(uid)
            if 2 * len(self._gone) > len(self._heap):
                self._drop_gone()
            return
        heapq.heappop(self._heap)
        while self._heap and self.head[3] in self._gone:
            self._gone.remove(heapq.heappop(self._heap)[3])

    def _drop_gone(self) -> None:
        self._heap = self.members
        self._gone = set()
        heapq.heapify(self._heap)
