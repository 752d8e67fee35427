"""The lock by which one agent at a time works on a node."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from services.node_agent.node_lock import NodeLock

HOLDER = """
import sys, time
from pathlib import Path
from services.node_agent.node_lock import NodeLock
lock = NodeLock(Path(sys.argv[1]))
print(lock.take(), flush=True)
sys.stdin.read()
"""


async def test_the_second_waits_until_the_first_gives_it_back(tmp_path: Path) -> None:
    first, second = (NodeLock(tmp_path / "state" / "agent.lock") for _ in range(2))
    assert (first.take(), first.take(), second.take()) == (True, True, False)
    waiting = asyncio.create_task(second.wait())
    first.give_back()
    await waiting
    assert not first.take()


def test_a_killed_process_has_given_it_back(tmp_path: Path) -> None:
    path = tmp_path / "agent.lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        lock = NodeLock(path)
        assert not lock.take()
        holder.kill()
        holder.wait()
        assert lock.take()
