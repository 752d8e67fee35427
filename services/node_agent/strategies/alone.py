"""Excludes from each other what changes the slices of the same pods or GPUs; other pods and GPUs go on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable


class Alone:
    def __init__(self) -> None:
        self._taken: list[frozenset[str]] = []
        self._waiting: list[tuple[frozenset[str], asyncio.Future[None]]] = []
        """In the order in which they came. None is overtaken by one that needs something of the same."""

    @contextlib.asynccontextmanager
    async def on(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Waits for all of these pods and GPUs at once, so that it keeps none from others meanwhile."""
        wanted = frozenset(names)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, turn))
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn has come at the same moment
                self._taken.remove(wanted)
            self._waiting = [one for one in self._waiting if one[1] is not turn]
            self._serve()
            raise
        try:
            yield
        finally:
            self._taken.remove(wanted)
            self._serve()

    def _serve(self) -> None:
        busy, left = {name for one in self._taken for name in one}, []
        for wanted, turn in self._waiting:
            if turn.cancelled():
                continue
            if busy.isdisjoint(wanted):
                self._taken.append(wanted)
                turn.set_result(None)
            else:
                left.append((wanted, turn))
            busy |= wanted
        self._waiting = left
