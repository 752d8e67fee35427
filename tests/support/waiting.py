"""Waiting for something that another process or task will bring about, bounded; never for time to pass."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any


async def eventually(
    condition: Callable[[], Any] | Callable[[], Awaitable[Any]],
    *,
    within_s: float = 15.0,
    what: str = "",
    every_s: float = 0.01,
) -> Any:
    """Returns the first truthy value of `condition`, checked every `every_s`. Fails in time, naming `what`, if there is
    none."""
    deadline = asyncio.get_running_loop().time() + within_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert asyncio.get_running_loop().time() < deadline, (
            f"not within {within_s} s: {what or inspect.getsource(condition).strip()}"
        )
        await asyncio.sleep(every_s)
