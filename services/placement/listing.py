"""The first snapshot of a leader session, booked part by part and taken in part by part. Pure.

A large cluster's takes seconds, in which the bus is served, and the lease is renewed, only between two parts. What else
comes once the book has all of it waits, in its order, until all is taken in: it would speak of pods that nobody has
been told of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from services.placement import messages as m
from shared.book.book import Book, Change
from shared.book.states import grant_of
from shared.contracts.facts import Fact
from shared.model.objects import Pod

CHANGES_AT_ONCE, LATER_AT_ONCE = 1000, 50
SEQUENCE_MOST = 2**53
"""Sequences begin at the time in milliseconds: this is the year 287,000. No log gets as far; what names more is not
believed."""
_DEFERRED = (
    m.SnapshotPart,
    m.SnapshotSeen,
    m.FactsSeen,
    m.InventorySeen,
    m.AgentLost,
    m.BeatSeen,
    m.SyncAnswered,
    m.GrantAcknowledged,
    m.ReleaseSeen,
)
"""What speaks of pods, grants or nodes."""


class Listing:
    def __init__(self, book: Book) -> None:
        self.later: deque[m.Input] = deque()
        """What waits, from the first on."""
        self.log_sequence_seen = 0
        """The highest sequence of the log that a watcher has seen, or that a grant on a pod names."""
        self.whole = False
        """From when the book has all of the snapshot until all that came meanwhile is taken in."""
        self._book = book
        self._changes: list[Change] = []
        self._booked = 0
        """How many facts of the snapshot are in the book."""
        self._left: Iterator[Change] = iter(())

    def defers(self, event: m.Input) -> bool:
        """Whether the input waits."""
        if not self.whole or not isinstance(event, _DEFERRED):
            return False
        if isinstance(event, m.SnapshotSeen):
            self.log_sequence_seen = max(self.log_sequence_seen, event.log_sequence_seen)
        self.later.append(event)
        return True

    def take(self, event: m.SnapshotPart | m.SnapshotSeen) -> bool:
        """A part of the snapshot, or all of it: then what its parts did not have is booked, and it is whole."""
        if isinstance(event, m.SnapshotPart):
            self._changes += [change for fact in event.facts for change in self._book.apply(fact)]
            self._booked += len(event.facts)
            self._note_sequences(event.facts)
            return False
        if self._booked != len(event.facts):  # nothing can be gone that the parts of this very snapshot had
            self._changes += self._book.apply_snapshot(event.facts)
            self._note_sequences(event.facts)
        self.log_sequence_seen, self.whole = max(self.log_sequence_seen, event.log_sequence_seen), True
        self._left, self._changes = iter(self._changes), []
        return True

    def next(self) -> list[Change]:
        """The next changes to take in: fewer than CHANGES_AT_ONCE are the last ones."""
        return list(islice(self._left, CHANGES_AT_ONCE))

    def waited(self) -> list[m.Input]:
        """The next inputs of those that have waited."""
        return [self.later.popleft() for _ in range(min(len(self.later), LATER_AT_ONCE))]

    def _note_sequences(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            grant = grant_of(fact.object)[0] if isinstance(fact.object, Pod) else None
            if grant is not None and grant.sequence < SEQUENCE_MOST:
                self.log_sequence_seen = max(self.log_sequence_seen, grant.sequence)
