"""Node equivalence classes: a new shape of pod is checked against each class once, not against thousands of nodes.

A class is defined by all that node filters and node scores read: labels, taints, cordon, the agent's state and the
inventory, without the names that are each node's own (its hostname, UUIDs of whole GPUs, bus ids), and what
they declare besides (`reads_node`). Pods that request one of these names are checked against each node.
"""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np

from services.placement.scores import scores
from services.placement.scores.base import NodeScore
from shared.book.accepts import gpu_constraints
from shared.book.arrays import Ints
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.model.gpu import Inventory
from shared.scheduling.fields import union, values_of
from shared.scheduling.filters import Filter, filters

NO_NODE = -1
_HOSTNAME = "kubernetes.io/hostname"
_OWN = ("node", "boot_id", "checkpoint_id", "generation", "gpus")
_ENCODER = msgspec.msgpack.Encoder()


@cache
def node_fields() -> tuple[str, ...]:
    """The further fields of a node that node filters and node scores declare."""
    readers: tuple[Filter | NodeScore, ...] = (*filters().node, *scores().node)
    return union(*(reader.reads_node or () for reader in readers))


class NodeClasses:
    def __init__(self, book: Book) -> None:
        self.book = book
        self._numbers: dict[bytes, int] = {}
        self._given = 0
        self._by_row: Ints = np.zeros(0, np.int64)
        self._stamps: Ints = np.zeros(0, np.int64)
        self._inventories: dict[str, tuple[Inventory, bytes]] = {}

    def by_row(self) -> Ints:
        """The number of each row's class, as of now; NO_NODE where there is no node."""
        stamps = self.book.arrays.stamp
        if len(stamps) > len(self._stamps):
            more = len(stamps) - len(self._stamps)
            self._by_row = np.concatenate([self._by_row, np.full(more, NO_NODE)])
            self._stamps = np.concatenate([self._stamps, np.zeros(more, np.int64)])
        for row in np.flatnonzero(self._stamps != stamps).tolist():
            name = self.book.row_names[row]
            self._by_row[row] = self._number(self._key(self.book.nodes[name])) if name else NO_NODE
            self._stamps[row] = stamps[row]
        if len(self._inventories) > 2 * len(self.book.nodes):
            self._inventories = {name: known for name, known in self._inventories.items() if name in self.book.nodes}
        if len(self._numbers) > 2 * len(self.book.nodes):
            in_use = set(self._by_row.tolist())
            self._numbers = {key: number for key, number in self._numbers.items() if number in in_use}
        return self._by_row

    def _number(self, key: bytes) -> int:
        """The class's number. A class without nodes is forgotten, and its number is never given again."""
        if key not in self._numbers:
            self._numbers[key] = self._given
            self._given += 1
        return self._numbers[key]

    def _key(self, node: NodeState) -> bytes:
        node_object = (
            b""
            if node.object is None
            else _ENCODER.encode(
                (
                    sorted(item for item in node.object.metadata.labels.items() if item[0] != _HOSTNAME),
                    node.object.spec.taints,
                    node.object.spec.unschedulable,
                )
            )
        )
        declared = node_fields()
        return (
            node_object
            + (_ENCODER.encode(values_of(node, declared)) if declared else b"")
            + node.agent_trouble.encode()
            + (b"" if node.inventory is None else self._inventory(node.name, node.inventory))
        )

    def _inventory(self, name: str, inventory: Inventory) -> bytes:
        """What filters and scores may read of an inventory, encoded once."""
        known = self._inventories.get(name)
        if known is None or known[0] is not inventory:
            # All but what each node has for itself, so that a new field is part of the class unless it is named here.
            alike = {key: value for key, value in msgspec.structs.asdict(inventory).items() if key not in _OWN}
            own = {"uuid": "-", "pci_bus_id": "", "foreign_mib": 0, "to_device_mb_s": 0, "from_device_mb_s": 0}
            gpus = [msgspec.structs.replace(gpu, **own) for gpu in inventory.gpus]
            known = self._inventories[name] = (inventory, _ENCODER.encode(alike | {"gpus": gpus}))
        return known[1]


def needs_node_identity(pod: PodState) -> bool:
    """Whether the pod requests something that distinguishes nodes of one class."""
    spec = pod.pod.spec
    if _HOSTNAME in spec.node_selector:
        return True
    wanted = gpu_constraints(pod.request)
    if wanted is not None and (wanted.uuids or wanted.uuids_not):
        return True
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is None:
        return False
    required = affinity.required_during_scheduling_ignored_during_execution
    terms = [
        *(required.node_selector_terms if required else ()),
        *(t.preference for t in affinity.preferred_during_scheduling_ignored_during_execution),
    ]
    return any(term.match_fields or any(e.key == _HOSTNAME for e in term.match_expressions) for term in terms)
