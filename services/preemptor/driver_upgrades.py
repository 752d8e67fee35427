"""Evicts Kerf's pods from nodes whose NVIDIA driver the GPU operator is about to replace. Pure.

The GPU operator cordons such a node and deletes the pods that request `nvidia.com/gpu`. It does not know Kerf's pods,
which keep the driver's modules in use, so the upgrade would not go on (NVIDIA/gpu-operator issue 2570). The states are
those of NVIDIA/k8s-operator-libs `pkg/upgrade/consts.go`.
"""

from __future__ import annotations

from services.preemptor import messages as m
from shared.book.book import Book
from shared.book.states import NodeState
from shared.contracts.commands import Evict

STATE_LABEL = "nvidia.com/gpu-driver-upgrade-state"
_EMPTIES = ("pod-deletion-required", "drain-required", "pod-restart-required")
"""The states in which no pod may use the GPUs any more."""
AGAIN_S = 30.0
"""How long after an attempt the pods that are still there are evicted again: a budget may have denied it."""


class DriverUpgrades:
    def __init__(self, book: Book, *, evicts: bool) -> None:
        """`evicts`: False if the operator has switched this off."""
        self._book, self._evicts = book, evicts
        self._asked: dict[str, float] = {}
        """When the pods of the nodes, by name, were evicted last."""

    def due(self, now: float) -> list[m.Command]:
        """Returns the evictions that are due now."""
        if not self._evicts:
            return []
        nodes = {node.name: node for node in self._book.nodes.values() if _state(node) in _EMPTIES}
        self._asked = {name: at for name, at in self._asked.items() if name in nodes}
        out: list[m.Command] = []
        for name, node in sorted(nodes.items()):
            if now - self._asked.get(name, now - AGAIN_S) < AGAIN_S:
                continue
            self._asked[name] = now
            orders = _evictions(node)
            if orders:
                out.append(m.Execute(f"driver upgrade of {name}", orders))
        return out


def _state(node: NodeState) -> str:
    return "" if node.object is None else node.object.metadata.labels.get(STATE_LABEL, "")


def _evictions(node: NodeState) -> tuple[Evict, ...]:
    reason = f"the GPU operator replaces the NVIDIA driver of node {node.name} ({STATE_LABEL}: {_state(node)})"
    return tuple(
        Evict(uid=state.uid, namespace=state.pod.metadata.namespace, name=state.pod.metadata.name, reason=reason)
        for state in sorted(node.pods.values(), key=lambda state: state.uid)
        if state.ours and state.grant_id and state.pod.spec.node_name and not state.pod.metadata.deletion_timestamp
    )
