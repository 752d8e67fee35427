"""Pages on disk: what the interposer would read, who stays, and what a container can do to them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.node_agent.strategies import layout
from services.node_agent.strategies.board import Board
from services.node_agent.strategies.page import folder_name
from services.node_agent.strategies.rules import Policy, Wish
from services.node_agent.strategies.slices import Part, Slice

UUID = "GPU-5a1c9a60-3f0e-4c53-8a53-3d1d0a8d7e11"


class Clock:
    ns = 7_000

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(tmp_path: Path, clock: Clock) -> Iterator[Board]:
    made = Board(tmp_path / "slices", Policy(), clock, lambda: (300 << 20, 0))
    yield made
    made.close()


def make(name: str, compute: int = 0, priority: int = 0, uuid: str = UUID) -> Slice:
    return Slice(
        uid=name,
        container="main",
        strategy="interposer",
        parts=(Part(uuid=uuid, memory_mib=64, compute_milli=compute),),
        priority=priority,
    )


def orders(board: Board, slice_: Slice) -> layout.Orders:
    return layout.Orders.from_buffer_copy((board.folder(slice_.key) / "orders").read_bytes())


def counters(board: Board, slice_: Slice) -> Path:
    return board.folder(slice_.key) / "counters"


def test_a_page_says_what_the_slice_may_do(board: Board) -> None:
    a = make("a", 250)
    board.put(a)
    said = orders(board, a)
    assert (said.magic, said.version, said.size_bytes, said.gpu_count, said.heartbeat_ns) == (
        layout.ORDERS_MAGIC,
        1,
        ctypes.sizeof(layout.Orders),
        1,
        7000,
    )
    assert (bytes(said.gpu[0].uuid), said.gpu[0].memory_limit_bytes) == (layout.uuid_bytes(UUID), 64 << 20)
    assert (said.gpu[0].compute_milli, said.gpu[0].context_bytes, said.tier) == (250, 300 << 20, layout.NORMAL)


def test_what_contexts_and_pools_take_is_told_when_it_is_measured(tmp_path: Path, clock: Clock) -> None:
    """The canary may end long after containers have started; and nothing else of the page changes with it."""
    costs = [(0, 0)]
    board, a = Board(tmp_path / "slices", Policy(), clock, lambda: costs[0]), make("a")
    board.put(a)
    assert (orders(board, a).gpu[0].context_bytes, orders(board, a).pool_chunk_bytes) == (0, 0)
    costs[0] = 311 << 20, 32 << 20
    board.say()
    assert (orders(board, a).gpu[0].context_bytes, orders(board, a).pool_chunk_bytes, orders(board, a).generation) == (
        311 << 20,
        32 << 20,
        2,
    )
    board.close()


def test_only_the_agent_can_write_the_orders(board: Board) -> None:
    a = make("a")
    board.put(a)
    modes = {name: (board.folder(a.key) / name).stat().st_mode & 0o777 for name in ("orders", "counters", "signal")}
    assert modes == {"orders": 0o644, "counters": 0o666, "signal": 0o666}


def test_a_change_is_told_by_another_generation_and_the_same_again_by_none(board: Board) -> None:
    a = make("a")
    board.put(a)
    first = orders(board, a).generation
    board.put(a)
    assert orders(board, a).generation == first
    board.wish(a.key, Wish(paused=True))
    assert (orders(board, a).generation, orders(board, a).paused) == (first + 1, 1)
    board.wish(a.key, Wish())
    assert orders(board, a).paused == 0


def test_who_comes_later_is_known_to_who_was_there(board: Board) -> None:
    """And the signal that it looks at is that of its peer: the same file, under a name that says nothing."""
    low, high = make("low"), make("high", priority=5)
    board.put(low)
    assert orders(board, low).tier == layout.NORMAL
    board.put(high)
    said = orders(board, low)
    assert (said.tier, said.peer_count) == (layout.LOW, 1)
    link = board.folder(low.key) / "peers" / said.peer[0].value.decode()
    assert link.stat().st_ino == (board.folder(high.key) / "signal").stat().st_ino
    assert "high" not in link.name
    board.drop(high.key)
    assert (orders(board, low).tier, list((board.folder(low.key) / "peers").iterdir())) == (layout.NORMAL, [])
    assert not board.folder(high.key).exists()


def test_a_restarted_container_and_a_restarted_agent_keep_the_files_that_processes_have_mapped(
    board: Board, tmp_path: Path, clock: Clock
) -> None:
    a = make("a")
    board.put(a)
    counters(board, a).write_bytes(
        counters(board, a).read_bytes()[:4096] + b"\1" * 8 + counters(board, a).read_bytes()[4104:]
    )
    inodes = [(board.folder(a.key) / name).stat().st_ino for name in ("orders", "counters", "signal")]
    second = Board(tmp_path / "slices", Policy(), clock)
    second.put(a)
    assert [(second.folder(a.key) / name).stat().st_ino for name in ("orders", "counters", "signal")] == inodes
    reading = second.read(a.key)
    assert reading is not None
    assert reading.gpus[0].account_bytes == 0x010101010101
    second.close()


def test_a_restarted_agent_tells_nobody_that_it_is_alone(board: Board, tmp_path: Path, clock: Clock) -> None:
    """What it takes up is told once, of all; one that it cannot take up keeps nobody from it."""
    low, high, bad = make("low"), make("high", priority=5), make("bad", uuid="GPU-x")
    board.put(low)
    board.put(high)
    before = orders(board, low).generation
    second = Board(tmp_path / "slices", Policy(), clock)
    ((failed, why),) = second.take_up([low, bad, high])
    assert (failed, "no UUID" in str(why)) == (bad, True)
    assert (orders(second, low).tier, orders(second, low).generation) == (layout.LOW, before + 1)
    second.close()


def test_what_cannot_be_said_leaves_nothing_behind(board: Board) -> None:
    a, bad = make("a"), make("b", uuid="GPU-x")
    board.put(a)
    with pytest.raises(ValueError, match="no UUID"):
        board.put(bad)
    assert [s.key for s in board.slices] == [a.key]
    assert not board.folder(bad.key).exists()
    assert orders(board, a).peer_count == 0


def test_pages_of_containers_that_are_gone_are_removed(board: Board, tmp_path: Path) -> None:
    a, b = make("a"), make("b")
    (tmp_path / "slices" / "of-an-earlier-agent").mkdir(parents=True)
    board.put(a)
    board.put(b)
    board.keep_only([a.key])
    assert [path.name for path in (tmp_path / "slices").iterdir()] == [folder_name(a.key)]


def test_the_heartbeat_is_the_clocks(board: Board, clock: Clock) -> None:
    a = make("a")
    board.put(a)
    clock.ns = 9_000
    board.beat()
    assert orders(board, a).heartbeat_ns == 9_000


def test_a_container_that_cuts_its_counters_is_found_out_and_harms_nobody_else(board: Board) -> None:
    a = make("a")
    board.put(a)
    os.truncate(counters(board, a), 100)
    reading = board.read(a.key)
    assert reading is not None
    assert "cut to 100 bytes" in reading.damage


@pytest.mark.parametrize(("length", "damage"), [(0, "cut to 0"), (1 << 40, "grown to")])
def test_a_signal_of_another_length_is_found_out_and_gets_its_length_back(
    board: Board, length: int, damage: str
) -> None:
    """A terabyte of it is not read, either."""
    a, size = make("a"), ctypes.sizeof(layout.Signal)
    board.put(a)
    path = board.folder(a.key) / "signal"
    os.truncate(path, length)
    reading = board.read(a.key)
    assert reading is not None
    assert damage in reading.damage
    assert path.stat().st_size == size
    reading = board.read(a.key)
    assert reading is not None
    assert reading.damage == ""


def test_a_container_that_fills_the_nodes_memory_through_its_counters_is_found_out_and_cut_back(board: Board) -> None:
    a, size = make("a"), ctypes.sizeof(layout.Counters)
    board.put(a)
    os.truncate(counters(board, a), size + 4096)
    reading = board.read(a.key)
    assert reading is not None
    assert "grown" in reading.damage
    assert counters(board, a).stat().st_size == size


def test_an_overwritten_head_is_damage(board: Board) -> None:
    a = make("a")
    board.put(a)
    with counters(board, a).open("r+b") as file:
        file.write(b"\0" * 8)
    reading = board.read(a.key)
    assert reading is not None
    assert reading.damage == "the head of its counters was overwritten"
