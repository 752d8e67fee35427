"""Has nodes advertise what they have (`shared.book.advertised`), and again where a kubelet has zeroed it.

A kubelet zeroes the extended resources of a node that it registers anew (kubernetes pkg/kubelet/kubelet_node_status.go,
reconcileExtendedResource), so nodes are looked at in turn, all the time.
"""

from __future__ import annotations

from services.placement.autoscaling.rota import Rota
from services.placement.protocol import labels
from shared.book.advertised import advertised
from shared.book.book import Book
from shared.book.states import NodeState
from shared.contracts.commands import AdvertiseCapacity
from shared.model import names
from shared.model.objects import Node

AGAIN_S = 20.0
"""A node is not asked to advertise more often than this: the watcher may have raised an amount on purpose."""
TURN_S = 5.0
_AT_ONCE = 50


class Advertising:
    def __init__(self, book: Book, quota_gpu_bytes: int) -> None:
        self._book, self._quota_gpu_bytes = book, quota_gpu_bytes
        self._rota = Rota(TURN_S)
        self._asked: dict[str, float] = {}
        self._first: list[str] = []
        """Nodes with a new inventory, which come first."""

    def note(self, node: str) -> None:
        """The node's inventory has changed."""
        self._asked.pop(node, None)
        self._first.append(node)

    def due(self, now: float) -> list[AdvertiseCapacity]:
        first, self._first = self._first[:_AT_ONCE], self._first[_AT_ONCE:]
        out: list[AdvertiseCapacity] = []
        for name in dict.fromkeys((*first, *self._rota.next(self._book.nodes, _AT_ONCE, now))):
            node = self._book.nodes.get(name)
            if node is None or node.object is None or (node.inventory is None and not labels.has_left(node.object)):
                continue
            if now - self._asked.get(name, float("-inf")) < AGAIN_S:
                continue
            amounts = self._amounts(node, node.object)
            if any(node.extended_total.get(key) != amount for key, amount in amounts.items()):
                self._asked[name] = now
                out.append(AdvertiseCapacity(node=name, amounts=amounts))
        if len(self._asked) > len(self._book.nodes):
            self._asked = {name: at for name, at in self._asked.items() if name in self._book.nodes}
        return out

    def _amounts(self, node: NodeState, known: Node) -> dict[str, int]:
        """What the node is to advertise: nothing of what it advertises no longer has, or after it has left Kerf."""
        gone = {name: 0 for name in node.extended_total if names.is_gpu_resource(name) or name == names.RESOURCE_QUOTA}
        if node.inventory is None or labels.has_left(known):
            return gone
        return gone | advertised(node.inventory, self._quota_gpu_bytes)
