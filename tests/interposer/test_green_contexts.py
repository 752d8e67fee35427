"""Green contexts: parts of a GPU's multiprocessors with the memory of the primary context."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import MIB, UUID, Node

LIMIT = 100 * MIB
CONTEXT = 20 * MIB
MS = 1_000_000


@pytest.mark.parametrize("way", ["memory", "reset"])
def test_the_primary_context_of_green_contexts_is_charged_once(built: Path, tmp_path: Path, way: str) -> None:
    """Until the last of them is destroyed or it is reset, and with the memory that was allocated in any of them."""
    node = Node(built, tmp_path / "node", context_mib=20)
    one = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=LIMIT),)), context_bytes=CONTEXT)
    count, most, charged, after = one.run("green", way)
    assert (count, most, charged, after) == (10, LIMIT, LIMIT, 0)


def test_a_heap_that_is_asked_for_in_a_green_context_is_charged(built: Path, tmp_path: Path) -> None:
    node = Node(built, tmp_path / "node", memory_mib=4096)
    one = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=LIMIT),)))
    assert one.run("green", "settings") == [2, 2, 0, 24]
    assert one.read().gpus[0].peak_bytes == 24 * MIB


@pytest.mark.parametrize("way", ["time", "ends"])
def test_time_on_a_stream_of_a_green_context_is_accounted(built: Path, tmp_path: Path, way: str) -> None:
    """Also while another context is current, and if it is destroyed while its work runs."""
    one = Node(built, tmp_path / "node", clients=1).container("a", Rules(gpus=(GpuRule(uuid=UUID, compute_milli=300),)))
    (gpu_ns,) = one.run("green", way)
    gpu = one.read().gpus[0]
    assert gpu_ns == 40 * MS
    assert abs(gpu.used_ns - gpu_ns) <= MS
    assert (gpu.launches, gpu.untimed) == (40, 0)
