"""Launches that pass behind a stall when all batches are in flight (docs/decisions/0268): they are charged together,
once, and peers see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import UUID, Node, high_and_low, numbers

EVENT_NS = 4_000


@pytest.mark.parametrize("stall", ["kernel", "value"])
def test_launches_behind_a_stall_get_no_more_than_the_share(built: Path, tmp_path: Path, stall: str) -> None:
    node = Node(built, tmp_path / "node", clients=1, event_ns=EVENT_NS)
    gpu_ns, elapsed_ns = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, compute_milli=300),))).run("beyond", stall)
    assert 0.15 < gpu_ns / elapsed_ns < 0.33


def test_a_context_that_is_destroyed_with_such_launches_is_charged_for_what_ran_before_them(
    built: Path, tmp_path: Path
) -> None:
    node = Node(built, tmp_path / "node", clients=1, event_ns=EVENT_NS)
    one = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, compute_milli=300),)))
    gpu_ns, elapsed_ns = one.run("beyond", "destroys")
    assert gpu_ns <= one.read().gpus[0].used_ns < 1.1 * gpu_ns
    assert gpu_ns / elapsed_ns < 0.33


def test_what_batches_were_charged_meanwhile_is_not_charged_again(built: Path, tmp_path: Path) -> None:
    """The program pays for the stall of 0.7 s and the short waits, since nothing tells when it passed batches."""
    node = Node(built, tmp_path / "node", clients=1, event_ns=EVENT_NS)
    rules = Rules(gpus=(GpuRule(uuid=UUID, in_flight_us=4_000_000),), peers=(("peer", "main"),))
    one = node.container("a", rules, now_ns=1 << 62)
    before_ns, gpu_ns, elapsed_ns = one.run("beyond", "gaps")
    assert gpu_ns <= one.read().gpus[0].used_ns - before_ns < 1.05 * elapsed_ns


def test_a_low_slice_does_not_run_beside_them(built: Path, tmp_path: Path) -> None:
    """The stall of 0.5 s is free for others, what comes after it is not."""
    high, low = high_and_low(Node(built, tmp_path / "node", clients=2, event_ns=EVENT_NS))
    working = high.start("beyond", "seen", KERF_FAKE_CUDA_CLIENT="0")
    filling = low.start("share", "saturate", "100000", "3", KERF_FAKE_CUDA_CLIENT="1")
    elapsed_ns, _ = numbers(working)
    assert elapsed_ns < 1_180_000_000
    assert sum(numbers(filling)) > 1_000_000_000
