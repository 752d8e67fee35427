"""What policies have learned is lost with each leader; the placed pods restore most of it, some at each call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from services.placement.engine.engine import Engine

REMEMBERED_AT_ONCE = 1000


class Memory:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._left: Iterator[str] | None = None

    def restore(self) -> bool:
        """From some of the pods. True if there are more."""
        pods = self._engine.book.pods
        if self._left is None:
            self._left = iter(list(pods))
        uids = list(islice(self._left, REMEMBERED_AT_ONCE))
        for state in (pods[uid] for uid in uids if uid in pods):
            if state.ours and state.charged:
                self._engine.meet(state, placed=True)
        return len(uids) == REMEMBERED_AT_ONCE
