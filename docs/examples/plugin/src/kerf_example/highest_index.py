"""A policy: of a node's GPUs the one with the highest index. Pods name it by kerf.dev/policy: highest-index."""

from __future__ import annotations

from services.placement.policies.spread import Spread
from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.model.request import GpuAsk


class HighestIndex(Spread):
    name = "highest-index"

    def order(self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState) -> list[GpuRoom]:
        return sorted(fitting, key=lambda room: -room.index)
