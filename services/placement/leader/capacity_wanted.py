"""Publishes which node types would give the waiting pods a place (`capacity.wanted`), whenever that changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from services.placement.core import Core
from services.placement.explain.steps import in_slices
from services.placement.queries.questions import scale_
from shared.contracts.events import CapacityWanted
from shared.contracts.explain import ScaleExplanation
from shared.contracts.queries import ScaleQuery

LOOK_S = 5.0
LOOK_S_A_NODE = 4e-3
"""Every type is tried in slices of a millisecond between decisions. Where the book changes meanwhile it is copied, all
at once. That takes a second at 15,000 nodes, and is done once a minute there."""
NODES_MOST = 64


class CapacityWatch:
    def __init__(self, core: Core, emit: Callable[[CapacityWanted], None]) -> None:
        self._core, self._emit = core, emit
        self._said: ScaleExplanation | None = None
        self._looked: tuple[int, int, int] | None = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(max(LOOK_S, LOOK_S_A_NODE * len(self._core.book.nodes)))
            if self._core.phase == "leading":
                await self.look()

    async def look(self) -> None:
        """Tries the node types if anything has changed since the last look. The first answer is published even if no
        pod waits: an earlier leader may have said that some do."""
        core = self._core
        state = (len(core.queue), core.queue.arrivals, core.book.arrays.cursor)
        nothing = not len(core.queue) and self._said is not None and not self._said.waiting
        if nothing or state == self._looked:
            return
        self._looked = state
        told = (await in_slices(scale_(core, ScaleQuery(max_nodes=NODES_MOST), time.time()))).scale
        if told is not None and told != self._said:
            self._said = told
            self._emit(CapacityWanted(scale=told))
