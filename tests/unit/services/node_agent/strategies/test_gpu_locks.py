"""One worker of the driver's locks for each GPU, and the journals that they leave."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from services.node_agent.strategies.gpu_locks import GpuLocks
from services.node_agent.strategies.lock_worker import started


@pytest.mark.parametrize("name", ["locks.json", "locks-GPU-1.json"])
async def test_the_next_agent_undoes_the_locks_of_every_gpu(
    cuda: str, tmp_path: Path, victim: int, state: Callable[[int], int], name: str
) -> None:
    """Also those of a former version, whose agent had one worker."""
    first = GpuLocks(cuda, tmp_path / "first")
    await first.of("GPU-1").lock(victim)
    assert first.held == {victim}
    second = GpuLocks(cuda, tmp_path)
    assert not second.has_leftovers()
    (tmp_path / name).write_text(json.dumps({victim: started(victim)}))
    assert second.has_leftovers()
    await second.start()
    assert (state(victim), second.has_leftovers()) == (0, False)
    await first.close()


async def test_closing_unlocks_on_all_gpus(cuda: str, tmp_path: Path, victim: int, state: Callable[[int], int]) -> None:
    made = GpuLocks(cuda, tmp_path)
    await made.of("GPU-1").lock(victim)
    await made.close()
    assert (state(victim), made.held) == (0, frozenset())
