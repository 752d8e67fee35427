"""Asks the drivers of plug-ins, and of `mps`, from time to time whether this node can offer their strategies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from services.node_agent.strategies.base import Driver, Offer
from shared.model.strategies import StrategyName, registered

PROBE_S = 5.0
"""How often the drivers are asked."""


class Probes:
    def __init__(self, drivers: Mapping[StrategyName, Driver], log: Any) -> None:
        self._drivers = drivers
        self._log = log
        self._names = tuple(
            name
            for name, strategy in registered().items()
            if name in drivers and not strategy.always_offered and strategy.proof != "canary"
        )
        """The strategies that are offered while their driver's probe says so."""
        self._found: dict[StrategyName, Offer] = {}

    @property
    def needed(self) -> bool:
        """Whether there is any such strategy."""
        return bool(self._names)

    def offered(self) -> tuple[StrategyName, ...]:
        return tuple(name for name, offer in self._found.items() if offer.ok)

    async def run(self, say: Callable[[], Awaitable[None]]) -> None:
        """Probes for ever. `say` publishes what the node offers now, after each change."""
        while True:
            found = {name: await self._probe_driver(name) for name in self._names}
            if found != self._found:
                self._found = found
                await say()
            await asyncio.sleep(PROBE_S)

    async def _probe_driver(self, name: StrategyName) -> Offer:
        try:
            offer = await self._drivers[name].probe()
        except Exception as error:  # noqa: BLE001 - a plug-in that fails takes back its own strategy alone
            offer = Offer(ok=False, sentence=f"its probe fails: {type(error).__name__}: {error}")
        if offer != self._found.get(name):
            self._log.info("strategy_probed", strategy=name, offered=offer.ok, why=offer.sentence)
        return offer
