"""Programmatic dependent launches: the interposer puts nothing between a kernel and the one that may overlap it."""

from __future__ import annotations

from pathlib import Path

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import UUID, Node

US = 1_000


def test_a_kernel_that_may_overlap_its_predecessor_follows_it_directly(built: Path, tmp_path: Path) -> None:
    one = Node(built, tmp_path / "node", clients=1).container("a", Rules(gpus=(GpuRule(uuid=UUID),)))
    assert one.run("dependent") == [0, 40 * 20 * US]
