"""The driver of the strategy `polite`."""

from __future__ import annotations

from services.node_agent.cdi.spec import ContainerEdits
from services.node_agent.strategies.base import NodeTools, Observed, Offer, Unadjustable
from services.node_agent.strategies.rules import Override
from services.node_agent.strategies.slices import Key, Slice
from shared.model.strategy import Strategy


class PoliteDriver:
    def __init__(self, strategy: Strategy, tools: NodeTools) -> None:
        self._strategy = strategy

    async def probe(self) -> Offer:
        return Offer(ok=True)

    def prepare(self, slice_: Slice, override: Override | None = None) -> None:
        """Nothing."""

    def edits(self, slice_: Slice) -> ContainerEdits:
        return ContainerEdits(env=(f"EXAMPLE_BE_POLITE={sum(part.memory_mib for part in slice_.parts)}",))

    def adjust(self, key: Key, override: Override) -> None:
        raise Unadjustable(f"strategy {self._strategy.name} cannot change a running slice")

    def observe(self, key: Key) -> tuple[Observed, ...]:
        return ()

    def release(self, key: Key) -> None:
        """Nothing."""
