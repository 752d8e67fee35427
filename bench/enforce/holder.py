"""An agent that locks processes until the benchmark kills or freezes it.

Usage: `python -m bench.enforce.holder LIBCUDA JOURNAL PID...`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from itertools import pairwise
from pathlib import Path

from services.node_agent.strategies.locks import Locks


async def hold(library: str, journal: str, *pids: str) -> None:
    """Locks all processes, then prints how long the first lock and its unlock took, in microseconds."""
    locks = Locks(library, Path(journal), patience_ms=500)
    await locks.start()
    times = [time.perf_counter()]
    for act in (locks.lock, locks.unlock):
        await act(int(pids[0]))
        times.append(time.perf_counter())
    for pid in pids:
        await locks.lock(int(pid))
    print(*(round((b - a) * 1e6) for a, b in pairwise(times)), flush=True)
    while True:
        await locks.heartbeat()
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(hold(*sys.argv[1:]))
