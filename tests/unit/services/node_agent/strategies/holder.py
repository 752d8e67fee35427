"""An agent that locks a process and keeps it locked until a test kills or freezes the agent."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from services.node_agent.strategies.locks import Locks


async def hold(library: str, journal: str, pid: str, patience_ms: str) -> None:
    locks = Locks(library, Path(journal), patience_ms=int(patience_ms))
    await locks.start()
    await locks.lock(int(pid))
    print("locked", locks._worker.pid if locks._worker else 0, flush=True)  # noqa: T201 - to the test
    while True:
        await locks.heartbeat()
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(hold(*sys.argv[1:5]))
