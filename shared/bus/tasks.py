"""Ending tasks that do not want to end.

A cancellation can be lost on its way: nats-py catches CancelledError in its flush and goes on, and `asyncio.wait_for`
of Python 3.11 loses one that comes together with the result (fixed in 3.12). A loop that lost its cancellation runs for
ever, and a task that awaits its end waits as long. So cancel until it has ended, and use `asyncio.timeout` for
time-outs.
"""

from __future__ import annotations

import asyncio
from typing import Any

ASK_AGAIN_S = 0.2


async def end(*tasks: asyncio.Task[Any], within_s: float = 10.0) -> bool:
    """Cancels and waits; False where one had not ended after `within_s`. What they raised is not raised here."""
    left = {task for task in tasks if not task.done()}
    deadline = asyncio.get_running_loop().time() + within_s
    while left and asyncio.get_running_loop().time() < deadline:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=ASK_AGAIN_S)
    return not left
