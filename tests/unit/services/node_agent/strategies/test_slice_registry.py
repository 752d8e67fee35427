"""Control blocks on disk: their content, their lifetime, and the damage that a container can do."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.strategies import layout
from services.node_agent.strategies.control_block import ControlBlock, Rules, folder_name
from services.node_agent.strategies.rules import NO_OVERRIDE, Override, Policy
from services.node_agent.strategies.slice_registry import Loan, SliceRegistry
from services.node_agent.strategies.slices import Part, Slice
from shared.contracts.node_commands import LiveSlice
from tests.support.leases import lease
from tests.support.waiting import eventually

UUID = "GPU-5a1c9a60-3f0e-4c53-8a53-3d1d0a8d7e11"


class Clock:
    ns = 7_000

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(tmp_path: Path, clock: Clock) -> Iterator[SliceRegistry]:
    made = SliceRegistry(tmp_path / "slices", Policy(), clock, lambda: (300 << 20, 0))
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


def orders(registry: SliceRegistry, slice_: Slice) -> layout.Orders:
    return layout.Orders.from_buffer_copy((registry.folder(slice_.key) / "orders").read_bytes())


def counters(registry: SliceRegistry, slice_: Slice) -> Path:
    return registry.folder(slice_.key) / "counters"


def test_a_control_block_holds_the_rules_of_its_slice(registry: SliceRegistry) -> None:
    a = make("a", 250)
    registry.put(a)
    sent = orders(registry, a)
    assert (
        sent.magic,
        sent.version,
        sent.size_bytes,
        sent.gpu_count,
        sent.heartbeat_ns,
    ) == (
        layout.ORDERS_MAGIC,
        1,
        ctypes.sizeof(layout.Orders),
        1,
        7000,
    )
    assert (bytes(sent.gpu[0].uuid), sent.gpu[0].memory_limit_bytes) == (
        layout.uuid_bytes(UUID),
        64 << 20,
    )
    assert (sent.gpu[0].compute_milli, sent.gpu[0].context_bytes, sent.tier) == (
        250,
        300 << 20,
        layout.NORMAL,
    )


def test_measured_costs_of_contexts_and_pools_are_written_to_running_slices(tmp_path: Path, clock: Clock) -> None:
    """The canary may end long after containers have started. Nothing else in the control block changes."""
    costs = [(0, 0)]
    registry, a = SliceRegistry(tmp_path / "slices", Policy(), clock, lambda: costs[0]), make("a")
    registry.put(a)
    assert (orders(registry, a).gpu[0].context_bytes, orders(registry, a).pool_chunk_bytes) == (0, 0)
    costs[0] = 311 << 20, 32 << 20
    registry.refresh()
    assert (
        orders(registry, a).gpu[0].context_bytes,
        orders(registry, a).pool_chunk_bytes,
        orders(registry, a).generation,
    ) == (
        311 << 20,
        32 << 20,
        2,
    )
    registry.close()


def test_only_the_agent_can_write_the_orders(registry: SliceRegistry) -> None:
    a = make("a")
    registry.put(a)
    modes = {name: (registry.folder(a.key) / name).stat().st_mode & 0o777 for name in ("orders", "counters", "signal")}
    assert modes == {"orders": 0o644, "counters": 0o666, "signal": 0o666}


def test_a_change_increments_the_generation_and_the_same_rules_do_not(registry: SliceRegistry) -> None:
    a = make("a")
    registry.put(a)
    first = orders(registry, a).generation
    registry.put(a)
    assert orders(registry, a).generation == first
    registry.set_override(a.key, Override(paused=True))
    assert (orders(registry, a).generation, orders(registry, a).paused) == (first + 1, 1)
    registry.set_override(a.key, Override())
    assert orders(registry, a).paused == 0


def test_a_later_slice_becomes_a_peer_of_the_earlier_one(registry: SliceRegistry) -> None:
    """The signal that it reads is its peer's file, under a name that does not identify the peer."""
    low, high = make("low"), make("high", priority=5)
    registry.put(low)
    assert orders(registry, low).tier == layout.NORMAL
    registry.put(high)
    sent = orders(registry, low)
    assert (sent.tier, sent.peer_count) == (layout.LOW, 1)
    link = registry.folder(low.key) / "peers" / sent.peer[0].value.decode()
    assert link.stat().st_ino == (registry.folder(high.key) / "signal").stat().st_ino
    assert "high" not in link.name
    registry.drop(high.key)
    assert (orders(registry, low).tier, list((registry.folder(low.key) / "peers").iterdir())) == (layout.NORMAL, [])
    assert not registry.folder(high.key).exists()


def test_a_restarted_container_and_a_restarted_agent_keep_the_files_that_processes_have_mapped(
    registry: SliceRegistry, tmp_path: Path, clock: Clock
) -> None:
    a = make("a")
    registry.put(a)
    counters(registry, a).write_bytes(
        counters(registry, a).read_bytes()[:4096] + b"\1" * 8 + counters(registry, a).read_bytes()[4104:]
    )
    inodes = [(registry.folder(a.key) / name).stat().st_ino for name in ("orders", "counters", "signal")]
    second = SliceRegistry(tmp_path / "slices", Policy(), clock)
    second.put(a)
    assert [(second.folder(a.key) / name).stat().st_ino for name in ("orders", "counters", "signal")] == inodes
    reading = second.read(a.key)
    assert reading is not None
    assert reading.gpus[0].account_bytes == 0x010101010101
    second.close()


def test_the_memory_of_a_dead_process_is_charged_but_not_held(registry: SliceRegistry) -> None:
    """A process that lives holds a lock on a byte of its own. What the agent decides by is what the living have."""
    a = make("a")
    registry.put(a)
    at = layout.Counters.from_buffer_copy(counters(registry, a).read_bytes())
    at.gpu[0].account = 48 << 20
    for place, held in ((0, 40 << 20), (1, 8 << 20)):
        at.process[place].state, at.process[place].charged_bytes[0] = 1, held
    counters(registry, a).write_bytes(bytes(at))

    def seen() -> tuple[int, int]:
        reading = registry.read(a.key)
        assert reading is not None
        return reading.gpus[0].account_bytes >> 20, reading.gpus[0].held_bytes >> 20

    with counters(registry, a).open("r+b") as file:
        living = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, layout.LOCK_AT + 1, 1, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, living)
        assert seen() == (48, 8)
    assert seen() == (48, 0)


def test_a_slice_is_no_younger_because_neighbours_come_and_go(registry: SliceRegistry, clock: Clock) -> None:
    """Each of them links its signal. What was lent is taken back from the slice with the shortest run time."""
    low, high = make("low"), make("high", priority=5)
    registry.put(high)
    folder = registry.folder(high.key)
    os.utime(folder, (1_000.0, 1_000.0))
    age_s = registry.age_s(high.key)
    assert age_s == round(time.time() - 1_000.0)
    registry.put(low)
    assert (folder / "signal").stat().st_nlink == 2
    registry.drop(low.key)
    registry.heartbeat()
    assert registry.age_s(high.key) >= age_s
    assert registry.age_s(("gone", "main")) == 0


def test_a_restarted_agent_never_tells_a_slice_that_it_is_alone(
    registry: SliceRegistry, tmp_path: Path, clock: Clock
) -> None:
    """The rules of all adopted slices are written at once; a slice that cannot be adopted does not prevent it."""
    low, high, bad = make("low"), make("high", priority=5), make("bad", uuid="GPU-x")
    registry.put(low)
    registry.put(high)
    before = orders(registry, low).generation
    second = SliceRegistry(tmp_path / "slices", Policy(), clock)
    ((failed, why),) = second.adopt([low, bad, high])
    assert (failed, "not a GPU UUID" in str(why)) == (bad, True)
    assert second.not_adopted == {bad.key}
    assert (orders(second, low).tier, orders(second, low).generation) == (layout.LOW, before + 1)
    second.keep_only([low.key, high.key])
    assert second.not_adopted == frozenset(), "its container has ended"
    second.close()


def test_a_slice_with_more_peers_than_its_control_block_names_is_no_obstacle(
    registry: SliceRegistry, tmp_path: Path, clock: Clock
) -> None:
    """No pod beside it is refused, none is kept from being paused, and the next agent starts."""
    low, reserved = make("low"), [make(f"p{number}", 25) for number in range(layout.MAX_PEERS + 3)]
    for one in (low, *reserved):
        registry.put(one)
    registry.set_override(reserved[0].key, Override(paused=True))
    successor = SliceRegistry(tmp_path / "slices", Policy(), clock)
    overrides = {reserved[0].key: Override(paused=True)}
    assert successor.adopt([low, *reserved], overrides) == []
    for found in (registry, successor):
        for one in (low, reserved[0]):
            sent = orders(found, one)
            assert (sent.tier, sent.peer_count) == (layout.LOW, layout.MAX_PEERS)
    successor.close()


def test_an_agent_starts_although_the_rules_of_a_slice_cannot_be_written(
    registry: SliceRegistry, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, bad, high = make("low"), make("bad", priority=3), make("high", priority=5)
    for one in (low, bad, high):
        registry.put(one)
    before, write = orders(registry, bad), ControlBlock.write

    def fails(block: ControlBlock, rules: Rules, **more: Any) -> None:
        if block.folder == registry.folder(bad.key):
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
        write(block, rules, **more)

    monkeypatch.setattr(ControlBlock, "write", fails)
    successor = SliceRegistry(tmp_path / "slices", Policy(), clock)
    ((failed, why),) = successor.adopt([low, bad, high])
    assert (failed, isinstance(why, OSError), successor.not_adopted) == (bad, True, {bad.key})
    assert bytes(orders(successor, bad)) == bytes(before), "it keeps its last rules"
    assert [one.key for one in successor.slices] == [low.key, high.key]
    assert (orders(successor, low).tier, orders(successor, low).peer_count) == (layout.LOW, 1)
    successor.set_override(low.key, Override(paused=True))
    assert orders(successor, low).paused, "what comes later does not fail by it"
    with pytest.raises(KeyError):
        successor.set_override(bad.key, Override(paused=True))
    successor.close()


def test_a_slice_learns_that_its_peer_is_resumed_before_the_peer_is(
    registry: SliceRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = make("a"), make("b")
    registry.put(a)
    registry.put(b)
    written: list[tuple[str, bool, bool]] = []
    write = ControlBlock.write

    def noted(block: ControlBlock, rules: Rules, **more: Any) -> None:
        name = "a" if block.folder == registry.folder(a.key) else "b"
        written.append((name, rules.paused, rules.peers_held))
        write(block, rules, **more)

    monkeypatch.setattr(ControlBlock, "write", noted)
    for held, other in ((b, a), (a, b)):
        registry.set_override(held.key, Override(paused=True))
        names = (held.uid, other.uid)
        assert written == [(names[0], True, False), (names[1], False, True)]
        written.clear()
        registry.set_override(held.key, NO_OVERRIDE)
        assert written == [(names[1], False, False), (names[0], False, False)]
        written.clear()


def test_rules_that_cannot_be_written_leave_nothing_behind(registry: SliceRegistry) -> None:
    a, bad = make("a"), make("b", uuid="GPU-x")
    registry.put(a)
    with pytest.raises(ValueError, match="not a GPU UUID"):
        registry.put(bad)
    assert [s.key for s in registry.slices] == [a.key]
    assert not registry.folder(bad.key).exists()
    assert orders(registry, a).peer_count == 0


def test_control_blocks_of_ended_containers_are_removed(registry: SliceRegistry, tmp_path: Path) -> None:
    a, b = make("a"), make("b")
    (tmp_path / "slices" / "of-an-earlier-agent").mkdir(parents=True)
    registry.put(a)
    registry.put(b)
    registry.keep_only([a.key])
    assert [path.name for path in (tmp_path / "slices").iterdir()] == [folder_name(a.key)]


def test_the_heartbeat_is_the_clocks_time(registry: SliceRegistry, clock: Clock) -> None:
    a = make("a")
    registry.put(a)
    clock.ns = 9_000
    registry.heartbeat()
    assert orders(registry, a).heartbeat_ns == 9_000


async def test_orders_that_cannot_be_mapped_end_no_heartbeat_and_are_mapped_by_a_later_one(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, folder = make("a"), make("b"), tmp_path / "slices"
    earlier = SliceRegistry(folder, Policy(), clock)
    earlier.put(a)
    earlier.put(b)
    earlier.close()
    second = SliceRegistry(folder, Policy(), clock)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with lease(second.folder(a.key) / "orders"):
        assert second.adopt([a, b]) == []
    clock.ns = 9_000
    with monkeypatch.context() as patched:
        patched.setattr(mmap, "mmap", refuse)

        def is_logged() -> bool:
            second.heartbeat()
            return "orders_not_written" in capsys.readouterr().out

        await eventually(is_logged)
    assert (orders(second, a).heartbeat_ns, orders(second, b).heartbeat_ns) == (7_000, 9_000)
    second.heartbeat()
    assert orders(second, a).heartbeat_ns == 9_000
    second.close()


async def test_no_slice_is_alone_while_its_peers_pause_is_not_written(tmp_path: Path, clock: Clock) -> None:
    """A process of the peer holds a lease on its orders while the agent starts: it runs, for it reads no pause."""
    a, b, folder = make("a"), make("b"), tmp_path / "slices"
    earlier = SliceRegistry(folder, Policy(), clock)
    earlier.put(a)
    earlier.put(b)
    earlier.close()
    second = SliceRegistry(folder, Policy(), clock)
    with lease(second.folder(b.key) / "orders"):
        assert second.adopt([a, b], {b.key: Override(paused=True)}) == []
        second.heartbeat()
        assert (orders(second, a).peers_held, second.is_busy(a.key)) == (0, False)

    def is_alone() -> bool:
        second.heartbeat()
        return bool(orders(second, a).peers_held)

    await eventually(is_alone)
    assert orders(second, b).paused == 1
    assert second.is_busy(a.key), "it reports nothing, so it may be"
    second.close()


def test_a_container_that_truncates_its_counters_is_detected_and_harms_no_other(registry: SliceRegistry) -> None:
    a = make("a")
    registry.put(a)
    os.truncate(counters(registry, a), 100)
    reading = registry.read(a.key)
    assert reading is not None
    assert "truncated to 100 bytes" in reading.damage


@pytest.mark.parametrize(("length", "damage"), [(0, "truncated to 0"), (1 << 40, "extended to")])
async def test_a_signal_of_another_length_is_detected_and_gets_its_length_back(
    registry: SliceRegistry, length: int, damage: str
) -> None:
    """The agent does not read a terabyte, either."""
    a, size = make("a"), ctypes.sizeof(layout.Signal)
    registry.put(a)
    path = registry.folder(a.key) / "signal"
    os.truncate(path, length)
    reading = registry.read(a.key)
    assert reading is not None
    assert damage in reading.damage
    await eventually(lambda: path.stat().st_size == size)
    reading = registry.read(a.key)
    assert reading is not None
    assert reading.damage == ""


async def test_counters_that_fill_the_nodes_memory_are_detected_and_truncated(
    registry: SliceRegistry,
) -> None:
    a, size = make("a"), ctypes.sizeof(layout.Counters)
    registry.put(a)
    os.truncate(counters(registry, a), size + 4096)
    reading = registry.read(a.key)
    assert reading is not None
    assert "extended" in reading.damage
    await eventually(lambda: counters(registry, a).stat().st_size == size)


def test_an_overwritten_header_is_damage(registry: SliceRegistry) -> None:
    a = make("a")
    registry.put(a)
    with counters(registry, a).open("r+b") as file:
        file.write(b"\0" * 8)
    reading = registry.read(a.key)
    assert reading is not None
    assert reading.damage == "the header of its counters was overwritten"


def bursting(name: str, limit_mib: int = 200) -> Slice:
    part = Part(uuid=UUID, memory_mib=64, compute_milli=0, memory_limit_mib=limit_mib)
    return Slice(uid=name, container="main", strategy="time_slice", parts=(part,))


def limit_mib(registry: SliceRegistry, slice_: Slice) -> int:
    return int(orders(registry, slice_).gpu[0].memory_limit_bytes) >> 20


def test_a_loan_raises_the_limit_until_the_slice_is_gone(registry: SliceRegistry) -> None:
    one, live = bursting("a"), LiveSlice(
        uid="a", namespace="n", name="a", container="main", grant_id="g", strategy="time_slice", gpus={UUID: (64, 0)}
    )  # fmt: skip
    registry.put(one)
    assert (limit_mib(registry, one), registry.allowed_mib(live, UUID)) == (64, 64)
    registry.lend({(one.key, UUID): Loan(limit_mib=100, held_mib=100)})
    assert (limit_mib(registry, one), registry.allowed_mib(live, UUID)) == (164, 164)
    assert registry.with_loans({UUID: (64, 300)}) == {UUID: (164, 300)}
    registry.lend({(one.key, UUID): Loan(limit_mib=10, held_mib=100)})
    assert registry.with_loans({UUID: (64, 300)}) == {UUID: (164, 300)}, "what it still has counts"
    assert (limit_mib(registry, one), registry.allowed_mib(live, UUID)) == (74, 164), "until it has given it back"
    registry.drop(one.key)
    registry.put(one)
    assert limit_mib(registry, one) == 64


def test_a_shrunk_slice_has_what_it_keeps_whatever_was_lent(registry: SliceRegistry) -> None:
    one = bursting("a")
    registry.put(one)
    registry.lend({(one.key, UUID): Loan(limit_mib=100, held_mib=100)})
    registry.set_override(one.key, Override(memory_mib={UUID: 32}))
    assert limit_mib(registry, one) == 32


def test_a_slice_on_the_host_neither_runs_nor_allocates(registry: SliceRegistry) -> None:
    one = bursting("a")
    registry.put(one)
    registry.set_on_host([one.key, ("unknown", "main")])
    assert registry.on_host == {one.key}
    assert (limit_mib(registry, one), orders(registry, one).paused) == (0, 1)
    registry.set_on_host([])
    assert (limit_mib(registry, one), orders(registry, one).paused) == (64, 0)


def test_a_new_agent_leaves_slices_what_was_lent_to_them(registry: SliceRegistry, tmp_path: Path, clock: Clock) -> None:
    """Otherwise their allocations would fail until it has looked. Never more than their limits, as they are granted."""
    one = bursting("a")
    registry.put(one)
    registry.lend({(one.key, UUID): Loan(limit_mib=100, held_mib=100)})
    successor = SliceRegistry(tmp_path / "slices", Policy(), clock)
    successor.adopt([one])
    assert (limit_mib(registry, one), successor.loan(one.key, UUID)) == (164, Loan(limit_mib=100, held_mib=136))
    successor.close()
    smaller = SliceRegistry(tmp_path / "slices", Policy(), clock)
    smaller.adopt([bursting("a", 80)])
    assert limit_mib(registry, one) == 80
    smaller.close()
