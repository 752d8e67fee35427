"""The space that storage drivers have for new volumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shared.book.book import Book
from shared.book.states import NodeState
from shared.book.volume_claims import asked_bytes, claims_of
from shared.contracts.explain import Reason
from shared.model.selectors import labels_match
from shared.model.storage import SELECTED_NODE, CSIStorageCapacity, PersistentVolumeClaim, StorageClass, driver_of


class StorageSpace:
    """For one pod, and the nodes that are looked at for it: which node has too little space for its volumes."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._near: dict[str, _Near] = {}
        """By class."""

    def lacking(
        self, claim: PersistentVolumeClaim, made: list[PersistentVolumeClaim], node: NodeState
    ) -> Reason | None:
        """Why no volume can be made for the claim near the node; None if one can, or if its driver counts no space.

        `made`: the pod's claims for which volumes are to be made. Space is needed for all of them, and for those that
        the driver is to make on this node for other pods.
        """
        storage: StorageClass = self._book.others["StorageClass"][claim.spec.storage_class_name or ""]
        driver = self._book.others.get("CSIDriver", {}).get(driver_of(storage))
        if driver is None or not driver.spec.storage_capacity or node.object is None:
            return None
        if claim.metadata.annotations.get(SELECTED_NODE) == node.name:
            return None  # it may be made by now, and its space is no longer counted as free
        name, asked = storage.metadata.name, asked_bytes(claim)
        waiting = [*made, *(c for pod in node.pods.values() for c in claims_of(pod.pod, self._book).values())]
        wanted = sum({c.metadata.uid: asked_bytes(c) for c in waiting if _is_to_be_made(c, name)}.values())
        if any(space.holds(asked, wanted) for space in self._of(name).to(node.object.metadata.labels)):
            return None
        return Reason(
            code="no-storage-capacity",
            sentence=f"StorageClass {name} has too little space where the node is for the {asked >> 20} MiB of claim "
            f"{claim.metadata.name}",
            helps="use a smaller claim or another class, or add storage there",
        )

    def _of(self, storage_class: str) -> _Near:
        if storage_class not in self._near:
            spaces = self._book.others.get(CSIStorageCapacity.__name__, {}).values()
            self._near[storage_class] = _Near(s for s in spaces if s.storage_class_name == storage_class)
        return self._near[storage_class]


class _Near:
    """Spaces of a class by one label that the nodes near them have: drivers of local disks have one for each node."""

    def __init__(self, spaces: Iterator[CSIStorageCapacity]) -> None:
        self._by_label: dict[str, dict[str, list[CSIStorageCapacity]]] = {}
        self._others: list[CSIStorageCapacity] = []
        for space in spaces:
            labels = {} if space.node_topology is None else space.node_topology.match_labels
            if labels:
                key = min(labels)
                self._by_label.setdefault(key, {}).setdefault(labels[key], []).append(space)
            else:
                self._others.append(space)

    def to(self, labels: Mapping[str, str]) -> Iterator[CSIStorageCapacity]:
        """Those that a node with these labels can reach."""
        for key, spaces in self._by_label.items():
            yield from (s for s in spaces.get(labels.get(key, ""), ()) if labels_match(s.node_topology, labels))
        yield from (s for s in self._others if labels_match(s.node_topology, labels))


def _is_to_be_made(claim: PersistentVolumeClaim, storage_class: str) -> bool:
    return not claim.spec.volume_name and claim.spec.storage_class_name == storage_class
