"""Which nodes never come back: what the key-value store has of them is removed, and with that every service forgets.

A node is departed when its Node object has been gone for an hour, its agent has been silent for as long, and nothing
that was granted there is unreleased. An agent that comes back all the same says its inventory again: it looks every
few seconds whether the store has it.
"""

from __future__ import annotations

from services.placement.protocol.nodes import Nodes
from shared.book.book import Book

FORGET_AFTER_S = 3600.0
LOOK_S = 60.0
AT_ONCE = 100
"""Nodes that are forgotten at a time: a whole cluster may have been renamed."""


class Departed:
    def __init__(self, book: Book, nodes: Nodes) -> None:
        self._book, self._nodes = book, nodes
        self._gone_since: dict[str, float] = {}
        """By node without an object: since when this leader has known that."""
        self._look_at = float("-inf")

    def due(self, now: float) -> list[str]:
        """Returns the nodes to forget now; again a minute later those that are still known."""
        if now < self._look_at:
            return []
        self._look_at = now + LOOK_S
        gone = [
            name
            for name, node in self._book.nodes.items()
            if node.object is None and node.inventory is not None and not (node.pods or node.grants or node.clients)
        ]
        self._gone_since = {name: self._gone_since.get(name, now) for name in gone}
        return [
            name
            for name, since in self._gone_since.items()
            if now - since >= FORGET_AFTER_S and now - self._nodes.heartbeats.get(name, since) >= FORGET_AFTER_S
        ][:AT_ONCE]
