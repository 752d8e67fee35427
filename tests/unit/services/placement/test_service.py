"""The parts of placement's service that do not involve the bus."""

from __future__ import annotations

import asyncio
import contextlib

from services.placement.service import _to_the_end


async def test_a_session_is_closed_completely_even_if_its_end_is_cancelled() -> None:
    """A leader that woke late was told twice to end; half-closed, it continued to answer queries from a dead book."""
    began, go_on, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def close() -> None:
        began.set()
        await go_on.wait()
        closed.set()

    ending = asyncio.create_task(_to_the_end(close()))
    await began.wait()
    ending.cancel()
    go_on.set()
    with contextlib.suppress(asyncio.CancelledError):
        await ending
    assert ending.cancelled()
    assert closed.is_set()
