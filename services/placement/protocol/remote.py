"""Grants on a GPU of another node than their pod's (strategy `remote`): R6 for two nodes.

The node of the GPU serves it, and its word alone returns it. The pod's node, the client, takes nothing: when it gives
its hand-over back, or is gone, the release is ordered on the serving node, and the pod is replaced when that has
released the grant. When the serving node is gone, the grant is free at once, as on any node.
"""

from __future__ import annotations

from services.placement import messages as m
from services.placement.protocol.nodes import Nodes
from services.placement.protocol.releases import Releases
from shared.book.book import Book
from shared.book.states import GrantState


class RemoteGrants:
    def __init__(self, book: Book, nodes: Nodes, releases: Releases) -> None:
        self._book, self._nodes, self._releases = book, nodes, releases

    def tick(self, now: float) -> list[m.Command]:
        out: list[m.Command] = []
        for held in [held for held in self._book.remote.values() if held.phase == "bound"]:
            out += self._look(held, now)
        return out

    def _look(self, held: GrantState, now: float) -> list[m.Command]:
        if self._is_gone(held.node):
            return self._releases.serving_node_gone(held, now)
        if self._is_gone(held.client):
            return self._nodes.void_by_client(held, now)
        return self._nodes.readdress(held, now)

    def _is_gone(self, name: str) -> bool:
        node = self._book.nodes.get(name)
        return node is None or node.object is None
