"""The strategy `exclusive`: a whole GPU for one container. No other container gets its device node; that is enforcement
enough."""

from __future__ import annotations

from services.node_agent.cdi.spec import ContainerEdits
from services.node_agent.strategies.base import NodeTools, Observed, Offer, Unadjustable
from services.node_agent.strategies.rules import Override
from services.node_agent.strategies.slices import Key, Slice
from shared.model.strategy import Strategy


class Exclusive:
    def __init__(self, strategy: Strategy, tools: NodeTools) -> None:  # noqa: ARG002 - as base.Driver
        self._strategy = strategy

    async def probe(self) -> Offer:
        return Offer(ok=True)

    def prepare(self, slice_: Slice, override: Override | None = None) -> None:
        """Nothing."""

    def edits(self, slice_: Slice) -> ContainerEdits:  # noqa: ARG002 - as base.Driver
        return ContainerEdits()

    def adjust(self, key: Key, override: Override) -> None:  # noqa: ARG002 - as base.Driver
        name = self._strategy.name
        raise Unadjustable(f"strategy {name} cannot change or pause running work; the pod can only be evicted")

    def observe(self, key: Key) -> tuple[Observed, ...]:  # noqa: ARG002 - as base.Driver
        return ()

    def release(self, key: Key) -> None:
        """Nothing."""
