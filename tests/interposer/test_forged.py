"""A program that forges its counters gets only its share of GPU time, in virtual time. See docs/attacks.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules, Surcharge
from tests.interposer.node import UUID, Node, high_and_low, numbers

SECONDS = 4
TWO_PERCENT_NS = 20_000_000
FORGED = ["tokens", "future", "past", "busy", "reach", "all"]


@pytest.mark.parametrize("what", FORGED)
def test_forged_tokens_buy_nothing_without_a_timetable(built: Path, tmp_path: Path, what: str) -> None:
    node = Node(built, tmp_path / "node", clients=1)
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, compute_milli=100),)))
    got = container.run("forge", what, "700000", str(SECONDS))
    assert all(ns < 100_000_000 + TWO_PERCENT_NS for ns in got)


@pytest.mark.parametrize("what", FORGED)
def test_forged_tokens_buy_nothing_within_a_timetable(built: Path, tmp_path: Path, what: str) -> None:
    node = Node(built, tmp_path / "node", clients=1)
    rule = GpuRule(uuid=UUID, compute_milli=100, period_ns=50_000_000, window_ns=5_000_000)
    got = node.container("a", Rules(gpus=(rule,))).run("forge", what, "700000", str(SECONDS))
    assert all(ns < 100_000_000 + TWO_PERCENT_NS for ns in got)


def test_processes_that_forge_together_get_one_share_once_the_agent_counts_them(built: Path, tmp_path: Path) -> None:
    """Each has a private bucket; the agent writes at which rate. Without that, four get four shares."""
    for private in (0, 25):
        node = Node(built, tmp_path / str(private), clients=4)
        container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, compute_milli=100),)))
        container.control_block.set_surcharges({UUID: Surcharge(private_milli=private)})
        forging = [
            container.start("forge", "all", "700000", str(SECONDS), KERF_FAKE_CUDA_CLIENT=str(client))
            for client in range(4)
        ]
        got_ns = sum(sum(numbers(program)) for program in forging) / SECONDS
        assert got_ns < 100_000_000 + 4 * TWO_PERCENT_NS if private else got_ns > 300_000_000


@pytest.mark.parametrize("floor", [0, 100])
def test_the_low_tier_cannot_forge_time_for_itself(built: Path, tmp_path: Path, floor: int) -> None:
    """Beside a peer that is always busy it gets its minimum share, and no more, whatever it writes."""
    first, forger = high_and_low(Node(built, tmp_path, clients=2), floor_milli=floor)
    busy = first.start("share", "requests", "1000000", "100", "100000000", str(SECONDS), KERF_FAKE_CUDA_CLIENT="0")
    forging = forger.start("forge", "all", "500000", str(SECONDS), KERF_FAKE_CUDA_CLIENT="1")
    served = numbers(busy)[0]
    got = sum(numbers(forging))
    assert served >= SECONDS * 10 * 0.88
    assert got <= SECONDS * (floor * 1_000_000 + 2_000_000)
