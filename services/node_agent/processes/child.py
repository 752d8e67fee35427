"""Ends a child of the agent that has not ended by itself.

SIGKILL ends no process that waits in the driver, and a wedged driver may keep it until the machine boots. So nothing
waits for such a child without a limit.
"""

from __future__ import annotations

import asyncio
import contextlib

KILLED_S = 2.0
"""How long a killed child is waited for."""
STUCK = "its process was killed and does not end: it waits in the driver"


async def end(process: asyncio.subprocess.Process) -> bytes | None:
    """Kills it, and returns what it had written to its error output, if that is a pipe; None if it does not end."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    try:
        _, errors = await asyncio.wait_for(process.communicate(), KILLED_S)
    except TimeoutError:
        return None
    return errors or b""
