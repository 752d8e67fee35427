"""How nodes reach each other over the network, from what their agents have measured. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shared.book.arrays import Bools
from shared.book.book import Book
from shared.book.states import UNANSWERED, NodeState
from shared.model import names
from shared.model.network import UNREACHABLE, NetworkLink

Pair = tuple[str, str]


class Links:
    """Agents measure a sample of all pairs. Where nobody has measured two nodes, the slowest link that was measured
    between their racks stands for them; nodes without a label of a rack count by their zone, else all as one."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._stamp = -1
        self._described: list[Any] = []
        self.serving: tuple[str, ...] = ()
        """The nodes that serve their GPUs, by name."""
        self.clients: tuple[str, ...] = ()
        """The nodes whose pods may use GPUs of others, by name."""
        self.served: dict[str, str] = {}
        """Where each node serves its GPUs, as agents are to measure it: also of agents that have not answered this
        leader yet, so that no measurement is given up when another one begins."""
        self.askers: frozenset[str] = frozenset()
        """As `clients`, with those too."""
        self.all_racks: dict[str, str] = {}
        """As `racks`, with those too."""
        self.racks: dict[str, str] = {}
        self.peers: dict[str, set[str]] = {}
        """With which nodes each has a measured link."""
        self._direct: dict[Pair, NetworkLink] = {}
        self._between: dict[Pair, NetworkLink] = {}
        self._columns: tuple[npt.NDArray[np.float64], ...] = ()
        """Of direct links and then of racks: from, to (rows of nodes, numbers of racks), round trip, 1 / bandwidth."""
        self._rack_of_row: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    def refresh(self) -> None:
        """Brings it up to date with the book's inventories."""
        if self._stamp == self._book.stamp:
            return
        self._stamp = self._book.stamp
        known = [
            (node, node.inventory.remote)
            for node in self._book.nodes.values()
            if node.object is not None and node.inventory is not None and node.agent_trouble in ("", UNANSWERED)
        ]
        described = [
            (node.name, node.row, rack_of(node), takes_slices(node), remote, node.agent_trouble)
            for node, remote in known
        ]
        if described == self._described:
            return  # what has changed is of no matter here
        self._described = described
        self.all_racks = {node.name: rack_of(node) for node, _ in known}
        self.served = {node.name: remote.address for node, remote in known if remote.address and takes_slices(node)}
        self.askers = frozenset(node.name for node, remote in known if remote.client)
        able = [node for node, _ in known if not node.agent_trouble]
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
        self._make_columns()

    def _make_columns(self) -> None:
        rows = {name: self._book.nodes[name].row for name in self.racks}
        numbers = {rack: number for number, rack in enumerate(sorted(set(self.racks.values())))}
        self._rack_of_row = np.full(self._book.arrays.rows, len(numbers), np.int64)
        for name, rack in self.racks.items():
            self._rack_of_row[rows[name]] = numbers[rack]
        self._columns = (_columns(self._direct, rows), _columns(self._between, numbers))

    def least_slowdowns(self, clients: Bools, calls_per_s: float, mib_per_s: float) -> npt.NDArray[np.float64]:
        """By row of a serving node: no client in these rows would have a smaller slowdown with its GPUs; infinite where
        no link is known."""
        racks = np.zeros(self._rack_of_row.max(initial=0) + 1, np.bool_)
        racks[self._rack_of_row[clients]] = True
        found = []
        for columns, at in zip(self._columns, (clients, racks), strict=True):
            least = np.full(at.size, np.inf)
            to = columns[1].astype(np.int64)
            able = at[to]
            slowdown = 1 + calls_per_s * columns[2] + mib_per_s * columns[3]
            np.minimum.at(least, columns[0].astype(np.int64)[able], slowdown[able])
            found.append(least)
        direct, by_rack = found
        least_of_all: npt.NDArray[np.float64] = np.minimum(direct, by_rack[self._rack_of_row])
        return least_of_all

    def _measured(self, node: str, peer: str, link: NetworkLink) -> None:
        for a, b in ((node, peer), (peer, node)):
            self.peers.setdefault(a, set()).add(b)
            self._direct[a, b] = slower(self._direct.get((a, b)), link)
            if link == UNREACHABLE:  # of these two nodes alone, and not of their racks
                continue
            racks = self.racks[a], self.racks[b]
            self._between[racks] = slower(self._between.get(racks), link)

    def between(self, a: str, b: str) -> NetworkLink | None:
        """The link of two nodes; None if nothing is known of it."""
        return self._direct.get((a, b)) or self._between.get((self.racks[a], self.racks[b]))


def _columns(links: dict[Pair, NetworkLink], places: dict[str, int]) -> npt.NDArray[np.float64]:
    made = [(places[a], places[b], link.rtt_us / 1e6, 1 / link.mib_s) for (a, b), link in links.items()]
    return np.array(made, np.float64).reshape(-1, 4).T


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
