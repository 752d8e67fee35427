"""A child that does not end when it is killed delays nothing for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.node_agent.processes import child
from services.node_agent.strategies.locks import LockError, Locks


async def test_a_killed_child_has_ended_and_its_last_words_are_returned() -> None:
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", "echo why >&2; echo ready; exec sleep 60",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    await process.stdout.readline()
    assert await child.end(process) == b"why\n"
    assert process.returncode == -9
    assert await child.end(process) == b"", "it has ended already"


class Stuck:
    """A child that waits in the driver."""

    def __init__(self) -> None:
        self.kills = 0

    def kill(self) -> None:
        self.kills += 1

    async def communicate(self) -> tuple[bytes, bytes]:
        await asyncio.Event().wait()
        raise AssertionError("it never ends")


async def test_a_child_that_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "KILLED_S", 0.01)
    process: Any = Stuck()
    assert await child.end(process) is None
    assert process.kills == 1


async def test_locks_of_a_wedged_driver_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Else the agent's start would wait for its worker until the machine boots."""
    began: list[asyncio.subprocess.Process] = []

    async def stuck(process: asyncio.subprocess.Process) -> None:
        began.append(process)

    monkeypatch.setattr(child, "end", stuck)
    locks = Locks("/nowhere/libcuda.so.1", tmp_path_factory.mktemp("run") / "locks.json")
    with pytest.raises(LockError, match="does not end: it waits in the driver"):
        await locks.start()
    monkeypatch.undo()
    for process in began:
        await child.end(process)
