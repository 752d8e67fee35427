"""A frozen or killed agent blocks no container: pauses and closed gates apply only while its heartbeat is fresh."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.strategies import layout
from services.node_agent.strategies.control_block import ControlBlock, GpuRule, Rules, folder_name
from tests.interposer.node import START_NS, UUID, Node

STALE_NS = 2_000_000_000


@pytest.mark.parametrize("held", ["gate", "paused"])
def test_a_closed_gate_opens_by_itself_when_the_agent_is_gone(built: Path, tmp_path: Path, held: str) -> None:
    node = Node(built, tmp_path / "node", clients=1)
    rules = Rules(gpus=(GpuRule(uuid=UUID, gate_closed=held == "gate"),), paused=held == "paused")
    got = node.container("a", rules, now_ns=START_NS).run("share", "saturate", "1000000", "5")
    assert got[0] < 5_000_000, "nothing while the last heartbeat is fresh"
    assert got[-1] > 980_000_000
    assert abs(sum(got) - (5_000_000_000 - STALE_NS)) < 20_000_000


def test_a_stale_heartbeat_blocks_no_container(built: Path, tmp_path: Path) -> None:
    node = Node(built, tmp_path / "node", clients=1)
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, gate_closed=True),)), now_ns=1)
    container.control_block.heartbeat()
    node_later = container.run("share", "requests", "1000000", "1", "1000000000", "4")
    assert node_later[0] == 4


def test_a_peer_that_died_at_work_blocks_the_low_tier_only_until_its_signal_expires(
    built: Path, tmp_path: Path
) -> None:
    node = Node(built, tmp_path / "node", clients=1)
    high = ("high", "main")
    control_block = ControlBlock(node.folder / folder_name(high), lambda: 0)
    signal = layout.Signal.from_buffer_copy((control_block.folder / "signal").read_bytes())
    signal.gpu_count = 1
    signal.gpu[0].uuid[15] = 1
    signal.gpu[0].busy_until_ns = START_NS + 500_000_000
    (control_block.folder / "signal").write_bytes(bytes(signal))
    low = node.container("low", Rules(gpus=(GpuRule(uuid=UUID, in_flight_us=1000),), low=True, peers=(high,)))
    got = low.run("share", "saturate", "500000", "2")
    assert abs(got[0] - 500_000_000) < 10_000_000
    assert got[1] > 980_000_000


def test_without_a_control_block_there_is_no_gpu(built: Path, tmp_path: Path) -> None:
    node = Node(built, tmp_path / "node")
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID),)))
    (container.control_block.folder / "orders").unlink()
    program = container.start("view", KERF_TEST_WAY="runtime")
    words = program.communicate(timeout=60)[1]
    assert "no control block of this container's slice" in words
    assert program.returncode == 3


@pytest.mark.parametrize("damage", ["short", "another version"])
def test_a_damaged_control_block_gives_no_gpu(built: Path, tmp_path: Path, damage: str) -> None:
    node = Node(built, tmp_path / "node")
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID),)))
    file = container.control_block.folder / "counters"
    file.write_bytes(file.read_bytes()[:4096] if damage == "short" else b"KRFC\x02\0\0\0" + file.read_bytes()[8:])
    assert container.start("view").wait(timeout=60) == 3


@pytest.mark.parametrize("fresh", [True, False])
def test_launches_are_timed_for_peers_that_the_agent_holds_only_once_it_is_gone(
    built: Path, tmp_path: Path, fresh: bool
) -> None:
    """Each record of an event keeps the GPU from the next kernel: without them the slice has all of its time."""
    node = Node(built, tmp_path / "node", clients=1, event_ns=100_000)
    rules = Rules(gpus=(GpuRule(uuid=UUID, in_flight_us=20_000),), peers=(("paused", "main"),), peers_held=True)
    one = node.container("a", rules, now_ns=1 << 62 if fresh else START_NS)
    gpu_ns, elapsed_ns = one.run("burst", "100", "1000000", "0", "50", "1")
    used = one.read().gpus[0]
    assert gpu_ns == 5_000_000_000
    if fresh:
        assert (used.launches, used.used_ns) == (0, 0)
        assert elapsed_ns < 5_001_000_000
    else:
        assert abs(used.launches - 3_000) <= 100, "from 2 s after the last heartbeat on"
        assert elapsed_ns > 5_500_000_000
