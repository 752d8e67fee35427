"""Memory of pools and of context settings, beside allocations: the charge follows the device's own figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import MIB, UUID, Container, Node

LIMIT = 100 * MIB
CHUNK = 32 * MIB
WAYS = ("keep", "waited", "small", "destroy", "trim", "heap")
Seen = tuple[int, int, int, int]


def container(built: Path, folder: Path, *, chunk: int, told: int = 0) -> Container:
    """`chunk`: what the fake driver's pools take at a time. `told`: `pool_chunk_bytes` in the orders."""
    node = Node(built, folder / "node", pool_kib=chunk >> 10)
    return node.container("a", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=LIMIT),)), pool_chunk_bytes=told)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("piece", [8 * MIB, 700_000])
@pytest.mark.parametrize("chunk", [2 * MIB, CHUNK])
def test_the_device_never_has_more_than_the_limit_nor_than_the_account(
    built: Path, tmp_path: Path, way: str, piece: int, chunk: int
) -> None:
    limited = container(built, tmp_path, chunk=chunk, told=chunk)
    most, hidden, _, after = limited.run("pools", way, str(piece))
    assert LIMIT - CHUNK < most <= LIMIT
    assert (hidden, after) == (0, 0)
    assert limited.read().gpus[0].account_bytes == 0


def test_memory_that_a_pool_keeps_is_available_to_other_allocations(built: Path, tmp_path: Path) -> None:
    """As the driver itself does, which trims its pools before it reports that there is no memory."""
    _, _, pieces, _ = container(built, tmp_path, chunk=2 * MIB).run("pools", "waited", str(8 * MIB))
    assert pieces == 2 * (LIMIT // (8 * MIB))


def test_a_destroyed_pool_is_charged_while_its_memory_is_in_use(built: Path, tmp_path: Path) -> None:
    _, _, pieces, _ = container(built, tmp_path, chunk=2 * MIB).run("pools", "destroy", str(8 * MIB))
    assert pieces == LIMIT // (8 * MIB)


def test_an_unmeasured_chunk_is_charged_when_the_pool_grows_and_learned_from_then_on(
    built: Path, tmp_path: Path
) -> None:
    """The first growth reveals the chunk size; here it happens far below the limit."""
    limited = container(built, tmp_path, chunk=CHUNK)
    most, hidden, pieces, after = limited.run("pools", "small", "700000")
    assert (most, hidden, after) == (LIMIT // CHUNK * CHUNK, 0, 0)
    assert pieces == LIMIT // CHUNK * CHUNK // 700_416


def test_a_first_chunk_larger_than_the_slice_is_undone_and_never_hidden(built: Path, tmp_path: Path) -> None:
    node = Node(built, tmp_path / "node", pool_kib=CHUNK >> 10)
    limited = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=16 * MIB),)))
    most, hidden, pieces, after = limited.run("pools", "small", str(MIB))
    assert (pieces, hidden, after) == (0, 0, 0)
    assert (most, limited.read().gpus[0].refused) == (CHUNK, 1)
