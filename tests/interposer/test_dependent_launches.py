"""Programmatic dependent launches: the interposer puts nothing between a kernel and the one that may overlap it."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import UUID, Node

US = 1_000
LAUNCH_NS = 2_000


def test_a_kernel_that_may_overlap_its_predecessor_follows_it_directly(built: Path, tmp_path: Path) -> None:
    one = Node(built, tmp_path / "node", clients=1).container("a", Rules(gpus=(GpuRule(uuid=UUID),)))
    assert one.run("dependent") == [0, 40 * 20 * US]


@pytest.mark.parametrize("share", [500, 990])
def test_it_does_where_gpu_time_is_charged_too(built: Path, tmp_path: Path, share: int) -> None:
    """The end is recorded before a launch that does not overlap. The first of all has its own."""
    rule = GpuRule(uuid=UUID, compute_milli=share)
    one = Node(built, tmp_path / "node", clients=1).container("a", Rules(gpus=(rule,)))
    lost, gpu_ns = one.run("dependent")
    assert lost <= 1
    assert gpu_ns == 40 * 20 * US
    # Each burst on an idle stream is charged the CPU time of its launch, too.
    assert gpu_ns <= one.read().gpus[0].used_ns <= 1.01 * gpu_ns + 40 * LAUNCH_NS
