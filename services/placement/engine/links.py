"""How nodes reach each other over the network, from what their agents have measured. Pure."""

from __future__ import annotations

from shared.book.book import Book
from shared.book.states import NodeState
from shared.model import names
from shared.model.network import NetworkLink

Pair = tuple[str, str]


class Links:
    """Agents measure a sample of all pairs. Where nobody has measured two nodes, the slowest link that was measured
    between their racks stands for them; nodes without a label of a rack count by their zone, else all as one."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._stamp = -1
        self.serving: tuple[str, ...] = ()
        """The nodes that serve their GPUs, by name."""
        self.clients: tuple[str, ...] = ()
        """The nodes whose pods may use GPUs of others, by name."""
        self.racks: dict[str, str] = {}
        self.peers: dict[str, set[str]] = {}
        """With which nodes each has a measured link."""
        self._direct: dict[Pair, NetworkLink] = {}
        self._between: dict[Pair, NetworkLink] = {}

    def refresh(self) -> None:
        """Brings it up to date with the book's inventories."""
        if self._stamp == self._book.stamp:
            return
        self._stamp = self._book.stamp
        able = [
            node
            for node in self._book.nodes.values()
            if node.object is not None and node.inventory is not None and not node.agent_trouble
        ]
        self.racks = {node.name: rack_of(node) for node in able}
        self.serving = tuple(
            node.name for node in able if node.inventory and node.inventory.remote.address and takes_slices(node)
        )
        self.clients = tuple(node.name for node in able if node.inventory and node.inventory.remote.client)
        self.peers, self._direct, self._between = {}, {}, {}
        for node in able:
            for peer, link in node.inventory.remote.network.items() if node.inventory else ():
                if peer in self.racks and peer != node.name:
                    self._measured(node.name, peer, link)

    def _measured(self, node: str, peer: str, link: NetworkLink) -> None:
        for a, b in ((node, peer), (peer, node)):
            self.peers.setdefault(a, set()).add(b)
            self._direct[a, b] = slower(self._direct.get((a, b)), link)
            racks = self.racks[a], self.racks[b]
            self._between[racks] = slower(self._between.get(racks), link)

    def between(self, a: str, b: str) -> NetworkLink | None:
        """The link of two nodes; None if nothing is known of it."""
        return self._direct.get((a, b)) or self._between.get((self.racks[a], self.racks[b]))


def rack_of(node: NodeState) -> str:
    labels = {} if node.object is None else node.object.metadata.labels
    return labels.get(names.LABEL_RACK) or labels.get(names.LABEL_ZONE, "")


def takes_slices(node: NodeState) -> bool:
    """Whether pods of other nodes may get GPUs of this one: a node that is cordoned or leaves takes none."""
    return (
        node.object is not None
        and not node.object.spec.unschedulable
        and all(taint.key != names.TAINT_LEAVING for taint in node.object.spec.taints)
    )


def slower(one: NetworkLink | None, other: NetworkLink) -> NetworkLink:
    """The worse figures of both."""
    if one is None:
        return other
    return NetworkLink(rtt_us=max(one.rtt_us, other.rtt_us), mib_s=min(one.mib_s, other.mib_s))
