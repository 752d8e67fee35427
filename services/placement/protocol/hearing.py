"""Which nodes a new session hears before it places anything, and which ones the next session is to hear.

Where the log was begun anew etcd may have been restored, and pods that are pending may run: then all nodes are heard,
those with an agent that have told no inventory yet included. After that only those nodes matter that keep pods back
(`Leftovers`). Nothing waits for long: an agent may be gone for good.
"""

from __future__ import annotations

from services.placement.protocol import labels
from services.placement.protocol.leftovers import Leftovers
from services.placement.protocol.nodes import Nodes
from services.placement.protocol.write_batcher import WriteBatcher
from shared.book.book import Book
from shared.contracts.log import ReadyRecord

FIRST_ANSWERS_S = 10.0
"""So long at most no reasons are given while nodes have yet to answer."""
HEARD_FIRST_S = 5.0
"""So long at most nothing is placed while nodes have yet to answer that are to be heard first."""
NAMED_MOST = 1_000
"""Nodes that are named in one record; of more, all are heard. A name has up to 253 bytes, a record up to 1 MiB."""

ToHear = frozenset[str] | None
"""Nodes, by name; None: all."""


class Hearing:
    def __init__(self, book: Book, nodes: Nodes, leftovers: Leftovers, batcher: WriteBatcher) -> None:
        self._book, self._nodes, self._leftovers, self._batcher = book, nodes, leftovers, batcher
        self._began = float("-inf")
        self._to_hear: ToHear = frozenset()
        self._silent: set[str] = set()
        """Nodes with an agent that had told no inventory when the session began."""
        self._logged: ToHear = frozenset()
        """What the next session is to hear by the newest record."""

    def begin(self, to_hear: ToHear, now: float) -> None:
        """A session begins to lead; by the log it is to hear these first."""
        self._began, self._to_hear = now, to_hear
        self._silent = set() if to_hear is not None else {name for name in self._book.nodes if self._is_silent(name)}

    def delays_all(self, now: float) -> bool:
        """Whether nothing is placed yet, because nodes may tell of pods that run there and are pending here."""
        return now < self._began + HEARD_FIRST_S and not self._are_heard(self._to_hear)

    def delays_reasons(self, now: float) -> bool:
        """Whether nodes have yet to answer a session that has just begun to lead. Until then nothing fits on them, and
        to say so of each waiting pod would keep the answers waiting: a reason looks at every node."""
        return now < self._began + FIRST_ANSWERS_S and not self._are_heard(None)

    def ready(self, term: int, excluded: dict[str, str], to_hear: ToHear) -> ReadyRecord:
        """What the session says of itself in the log. `to_hear`: what the next one is to hear."""
        self._logged = to_hear
        if to_hear is None or len(to_hear) > NAMED_MOST:
            return ReadyRecord(term=term, excluded=excluded, hear_first=True)
        return ReadyRecord(term=term, excluded=excluded, hear_nodes=tuple(sorted(to_hear)))

    def left(self, now: float) -> ToHear:
        """What the next session is to hear as things are."""
        if not self.delays_all(now):
            return self._leftovers.nodes
        return None if self._to_hear is None else self._to_hear | self._leftovers.nodes

    def note(self, term: int) -> None:
        """The nodes have been heard, or waited for: the next session waits only for those that keep pods back."""
        nodes, logged = self._leftovers.nodes, self._logged
        # Where some are over the others are named still: to hear one too many costs a moment.
        if logged is None or nodes - logged or (logged and not nodes):
            self._batcher.owed.append(self.ready(term, {}, nodes))

    def _are_heard(self, nodes: ToHear) -> bool:
        if nodes is not None:
            return self._nodes.unanswered_syncs.isdisjoint(nodes)
        while self._silent and not self._is_silent(next(iter(self._silent))):
            self._silent.pop()
        return not (self._silent or self._nodes.unanswered_syncs)

    def _is_silent(self, name: str) -> bool:
        node = self._book.nodes.get(name)
        return node is not None and node.inventory is None and node.object is not None and labels.has_agent(node.object)
