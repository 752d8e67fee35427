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
NOTE_EVERY_S = 1.0
"""So often at most it is written which nodes the next session is to hear."""
NAMED_MOST = 1_000
"""Nodes that are named in one record; of more, all are heard. A name has up to 253 bytes, a record up to 1 MiB."""

ToHear = frozenset[str] | None
"""Nodes, by name; None: all."""


class Hearing:
    def __init__(self, book: Book, nodes: Nodes, leftovers: Leftovers, batcher: WriteBatcher) -> None:
        self._book, self._nodes, self._leftovers, self._batcher = book, nodes, leftovers, batcher
        self._began = float("-inf")
        self._to_hear: ToHear = frozenset()
        self._after_loss = False
        """Whether the log was lost, and nodes have had something to tell since."""
        self._silent: set[str] = set()
        """Of the nodes to hear, those with an agent that had told no inventory when the session began."""
        self._look_at = float("-inf")
        self._logged: ToHear = frozenset()
        """What the next session is to hear by the newest record."""

    def begin(self, to_hear: ToHear, now: float) -> None:
        """A session begins to lead; by the log it is to hear these first."""
        self._began, self._to_hear, self._after_loss = now, to_hear, to_hear is None or bool(to_hear)
        self._silent = {name for name in (self._book.nodes if to_hear is None else to_hear) if self._is_silent(name)}

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
        if to_hear is None:
            return ReadyRecord(term=term, excluded=excluded, hear_first=True)
        return ReadyRecord(term=term, excluded=excluded, hear_nodes=tuple(sorted(to_hear)))

    def left(self, now: float) -> ToHear:
        """What the next session is to hear as things are."""
        still = self._to_hear if self.delays_all(now) else frozenset()
        if still is None:
            return None
        nodes = still | self._leftovers.nodes(gone=self._after_loss)
        return nodes if len(nodes) <= NAMED_MOST else None

    def note(self, term: int, now: float) -> None:
        """The nodes have been heard, or waited for: the next session waits only for those that have leftovers."""
        if now < self._look_at or self._batcher.owed or self._batcher.in_flight is not None:
            return
        self._look_at = now + NOTE_EVERY_S
        left = self.left(now)
        if left != self._logged:
            self._batcher.owed.append(self.ready(term, {}, left))

    def _are_heard(self, nodes: ToHear) -> bool:
        while self._silent:
            name = next(iter(self._silent))
            if self._is_silent(name):
                return False
            self._silent.discard(name)
        unanswered = self._nodes.unanswered_syncs
        return not unanswered if nodes is None else unanswered.isdisjoint(nodes)

    def _is_silent(self, name: str) -> bool:
        node = self._book.nodes.get(name)
        return node is not None and node.inventory is None and node.object is not None and labels.has_agent(node.object)
