"""If the driver refuses an allocation although the slice has room, the reservation is released."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import MIB, UUID, Node
from tests.interposer.test_memory import LIMIT, OUT_OF_MEMORY, PATHS, PIECE

DEVICE_MIB = 50


@pytest.mark.parametrize("path", PATHS)
def test_an_allocation_that_the_driver_refuses_is_not_charged(built: Path, tmp_path: Path, path: str) -> None:
    """The device is full before the slice is, as if other pods used more than their grants."""
    node = Node(built, tmp_path / "node", mib=DEVICE_MIB)
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=LIMIT),)))
    count, most, after, error = container.run("paths", path, str(PIECE))
    gpu = container.read().gpus[0]
    assert most + most // count > DEVICE_MIB * MIB, "the next piece would not have fitted on the device"
    assert (after, error, gpu.refused) == (0, OUT_OF_MEMORY, 0), "the driver has refused it, not the slice"
    assert gpu.account_bytes == 0
