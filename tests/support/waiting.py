"""Waiting for something that another process or task will bring about, bounded; never for time to pass."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

Condition = Callable[[], Any] | Callable[[], Awaitable[Any]]


async def within(condition: Condition, seconds: float, *, every_s: float = 0.01) -> Any:
    """The first truthy value of `condition`, looked at every `every_s`; at the end of the time its last, falsy one."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value or asyncio.get_running_loop().time() >= deadline:
            return value
        await asyncio.sleep(every_s)


async def eventually(condition: Condition, *, within_s: float = 15.0, what: str = "", every_s: float = 0.01) -> Any:
    """The first truthy value of `condition`. Fails, naming `what`, when none comes in time."""
    value = await within(condition, within_s, every_s=every_s)
    assert value, f"not within {within_s} s: {what or inspect.getsource(condition).strip()}"
    return value
