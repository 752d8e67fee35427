"""Evicts Kerf's pods from nodes whose NVIDIA driver the GPU operator is about to replace. Pure.

The GPU operator cordons such a node and deletes the pods that request `nvidia.com/gpu`. It does not know Kerf's pods,
which keep the driver's modules in use, so the upgrade would not go on (NVIDIA/gpu-operator issue 2570). The states are
those of NVIDIA/k8s-operator-libs `pkg/upgrade/consts.go`.
"""

from __future__ import annotations

from services.preemptor import messages as m
from services.preemptor.repeated_evictions import RepeatedEvictions, evictions_of
from shared.book.book import Book
from shared.book.states import NodeState
from shared.contracts.commands import Evict

STATE_LABEL = "nvidia.com/gpu-driver-upgrade-state"
_EMPTIES = ("pod-deletion-required", "drain-required", "pod-restart-required")
"""The states in which no pod may use the GPUs any more."""
LOOK_S = 5.0
"""How often all nodes are looked at: the operator waits for minutes."""


class DriverUpgrades:
    def __init__(self, book: Book, *, evicts: bool) -> None:
        """`evicts`: False if the operator has switched this off."""
        self._book, self._evicts = book, evicts
        self._evictions = RepeatedEvictions("driver upgrade of")
        self._look_at = float("-inf")

    def due(self, now: float) -> list[m.Command]:
        """Returns the evictions that are due now."""
        if not self._evicts or now < self._look_at:
            return []
        self._look_at = now + LOOK_S
        nodes = [node.name for node in self._book.nodes.values() if _state(node) in _EMPTIES]
        return self._evictions.due(nodes, lambda name: self._pods_of(self._book.nodes[name]), now)

    def _pods_of(self, node: NodeState) -> tuple[Evict, ...]:
        """The pods that use its GPUs, wherever they run: a server for another node keeps the driver in use too."""
        reason = f"the GPU operator replaces the NVIDIA driver of node {node.name} ({STATE_LABEL}: {_state(node)})"
        states = [(held, self._book.pods.get(held.uid)) for held in node.grants.values()]
        using = [
            state for held, state in states
            if state is not None and state.ours and not state.ended and state.grant_id == held.grant_id
        ]  # fmt: skip
        return evictions_of(using, reason)


def _state(node: NodeState) -> str:
    return "" if node.object is None else node.object.metadata.labels.get(STATE_LABEL, "")
