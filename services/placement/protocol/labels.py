"""GPU feature discovery's labels of a node, from its inventory: for people, selectors and topology levels.

Names and forms: NVIDIA k8s-device-plugin, docs/gpu-feature-discovery, "Generated Labels".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from shared.book.book import Book
from shared.contracts.commands import LabelNode
from shared.model import names
from shared.model.generations import generation_of
from shared.model.gpu import Inventory
from shared.model.mig import geometry_of
from shared.model.objects import Node

AGAIN_S = 60.0
AT_ONCE = 50
_ENROLLED = (names.LABEL_ENROLLED, names.LABEL_MANAGED, names.LABEL_GPUSHARE)


def has_left(node: Node) -> bool:
    """Whether the node is enrolled in Kerf no longer: its labels have been taken away, and stay away."""
    have = node.metadata.labels
    return not any(have.get(label) == "true" for label in _ENROLLED) and not any(
        taint.key == names.TAINT_MANAGED for taint in node.spec.taints
    )


def has_agent(node: Node) -> bool:
    """Whether an agent runs there, or has run there: the node is enrolled, and its GPUs have been labelled."""
    return names.LABEL_GPU_COUNT in node.metadata.labels and not has_left(node)


def missing(inventory: Inventory, have: Mapping[str, str]) -> dict[str, str | None]:
    """The labels to write so that they match the node's inventory. Labels that GPU feature discovery wrote stay as they
    are."""
    theirs = names.LABEL_GFD_TIMESTAMP in have
    return {
        key: value
        for key, value in _labels(inventory).items()
        if have.get(key) != value and not (theirs and key in have)
    }


class NodeLabels:
    def __init__(self, book: Book) -> None:
        self._book = book
        self._next: dict[str, float] = {}
        """When the labels of a node are to be checked next."""

    def note(self, node: str, now: float) -> None:
        """Notes that a node, or its inventory, has changed."""
        self._next[node] = now

    def due(self, now: float) -> list[LabelNode]:
        """Returns commands for nodes with labels that differ from their inventory; repeated until they match."""
        out: list[LabelNode] = []
        for name in [name for name, at in self._next.items() if at <= now][:AT_ONCE]:
            del self._next[name]
            node = self._book.nodes.get(name)
            if node is None or node.object is None or node.inventory is None or has_left(node.object):
                continue
            wrong = missing(node.inventory, node.object.metadata.labels)
            if wrong:
                out.append(LabelNode(node=name, labels=wrong))
                self._next[name] = now + AGAIN_S
        return out


def _labels(inventory: Inventory) -> dict[str, str]:
    """By the first GPU: nodes with mixed models are rare, and feature discovery does the same."""
    if not inventory.gpus:
        return {}
    first = inventory.gpus[0]
    found = {
        names.LABEL_GPU_PRODUCT: re.sub(r"[^A-Za-z0-9_.-]", "-", first.model)[:63].strip("-_."),
        names.LABEL_GPU_COUNT: str(len(inventory.gpus)),
        names.LABEL_GPU_MEMORY: str(first.memory_mib),
        names.LABEL_GPU_FAMILY: generation_of(first.compute_capability).lower(),
        names.LABEL_GPU_CLIQUE: inventory.clique,
        names.LABEL_MIG_CAPABLE: str(geometry_of(first.model, first.memory_mib) is not None).lower(),
    }
    parts = {
        names.LABEL_GPU_COMPUTE: (first.compute_capability, ("major", "minor")),
        names.LABEL_DRIVER: (inventory.driver_version, ("major", "minor", "rev")),
        names.LABEL_CUDA: (inventory.cuda_version, ("major", "minor")),
    }
    for prefix, (version, words) in parts.items():
        found |= {f"{prefix}.{word}": number for word, number in zip(words, version.split("."), strict=False)}
    return {key: value for key, value in found.items() if value}
