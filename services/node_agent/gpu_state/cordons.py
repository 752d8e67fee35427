"""Cordons: GPUs that take no new slices until an operator undoes it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from services.node_agent.state import Cordon
from shared.contracts.node_commands import NodeCordon
from shared.model.gpu import Gpu, Inventory


class Cordons:
    def __init__(self, saved: Iterable[Cordon] = ()) -> None:
        self._by_gpu = {cordon.gpu: cordon for cordon in saved}
        """By GPU UUID; "" is the whole node."""

    @property
    def saved(self) -> tuple[Cordon, ...]:
        return tuple(self._by_gpu.values())

    def refusal(self, asked: NodeCordon, node: str, gpus: Iterable[str]) -> str:
        """Why this order cannot be carried out; empty if it can."""
        if asked.gpu and asked.gpu not in gpus:
            return f"node {node} has no GPU {asked.gpu}"
        if asked.undo and asked.gpu and "" in self._by_gpu:
            return f"the whole node {node} is cordoned by {self._by_gpu[''].by}; uncordon the node first"
        return ""

    def apply(self, asked: NodeCordon) -> None:
        """Carries the order out.

        The first cordon of a GPU stands until it is undone. Undoing a node's cordon keeps those of its single GPUs.
        """
        if asked.undo:
            self._by_gpu.pop(asked.gpu, None)
        else:
            self._by_gpu.setdefault(asked.gpu, Cordon(gpu=asked.gpu, by=asked.by or "unknown", reason=asked.reason))

    def with_cordons(self, seen: Inventory) -> Inventory:
        """The inventory with the states that the cordons give. An unhealthy GPU stays unhealthy."""
        if not self._by_gpu:
            return seen
        return msgspec.structs.replace(seen, gpus=tuple(self._with_cordon(gpu) for gpu in seen.gpus))

    def _with_cordon(self, gpu: Gpu) -> Gpu:
        cordon = self._by_gpu.get(gpu.uuid) or self._by_gpu.get("")
        if cordon is None or gpu.state == "unhealthy":
            return gpu
        reason = f"cordoned by {cordon.by}" + (f": {cordon.reason}" if cordon.reason else "")
        return msgspec.structs.replace(gpu, state="draining", reason=reason)
