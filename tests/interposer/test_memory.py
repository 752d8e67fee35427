"""The memory limit: exact for every allocation call and for all processes of a container together, even if they
crash."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules, Surcharge
from tests.interposer.node import MIB, UUID, Container, Node, numbers, until

LIMIT = 100 * MIB
PIECE = 8 * MIB
OUT_OF_MEMORY = 2
SECOND = "GPU-00000000-0000-0000-0000-000000000002"
PATHS = (
    "cuMemAlloc",
    "cuMemAllocManaged",
    "cuMemAllocPitch",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemCreate",
    "cuArrayCreate",
    "cuArray3DCreate",
    "cuMipmappedArrayCreate",
)
WAYS = ("runtime", "threads", "old", "names", "path")
Limited = Callable[[int], Container]


@pytest.mark.parametrize("path", PATHS)
def test_every_allocation_call_gives_the_whole_limit_and_not_a_byte_more(limited: Limited, path: str) -> None:
    container = limited(LIMIT)
    count, most, after, error = container.run("paths", path, str(PIECE))
    assert most <= LIMIT < most + most // count, "the next block would not have fitted"
    assert (after, error) == (0, OUT_OF_MEMORY)
    gpu = container.read().gpus[0]
    assert (gpu.account_bytes, gpu.peak_bytes, gpu.refused) == (0, most, 1)


def test_arrays_are_charged_what_the_device_has_for_their_format_and_layers(built: Path, tmp_path: Path) -> None:
    node = Node(built, tmp_path / "node", memory_mib=8192)
    one = node.container("arrays", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=4096 * MIB),)))
    figures = one.run("kinds", "arrays")
    assert figures[::2] == figures[1::2] == [128, 128, 64, 64, 1024], "charged, and taken of the device"


def test_an_allocation_from_no_pool_is_refused_and_costs_nothing(limited: Limited) -> None:
    assert limited(LIMIT).run("kinds", "pool") == [1, 0]


def test_memory_of_a_peer_is_charged_to_the_gpu_that_has_it(built: Path, tmp_path: Path) -> None:
    node = Node(built, tmp_path / "node", devices=2)
    rules = tuple(GpuRule(uuid=uuid, memory_limit_bytes=LIMIT) for uuid in (UUID, SECOND))
    assert node.container("ranks", Rules(gpus=rules)).run("peers") == [100, 20]


def test_a_library_that_looks_the_driver_up_while_it_is_opened_holds_up_no_thread(
    limited: Limited, built: Path
) -> None:
    """Its constructor has the dynamic linker's lock, which another thread's first look-up waits for."""
    assert limited(LIMIT).run("opens", str(built / "programs" / "opened.so")) == [2]


@pytest.mark.parametrize("path", PATHS)
def test_the_agents_surcharge_lowers_the_limit(limited: Limited, path: str) -> None:
    """NVML sees 40 MiB that the account does not have."""
    container = limited(LIMIT)
    container.control_block.set_surcharges({UUID: Surcharge(memory_bytes=40 * MIB)})
    count, most, after, error = container.run("paths", path, str(PIECE))
    assert most <= LIMIT - 40 * MIB < most + most // count
    assert (after, error) == (0, OUT_OF_MEMORY)


def test_a_surcharge_is_shown_as_used_memory(limited: Limited) -> None:
    container = limited(LIMIT)
    total, free, device, free_after, *_ = container.run("view")
    container.control_block.set_surcharges({UUID: Surcharge(memory_bytes=20 * MIB)})
    assert container.run("view")[:4] == [total, free - 20 * MIB, device, free_after - 20 * MIB]


def test_a_surcharge_above_the_limit_leaves_nothing(limited: Limited) -> None:
    container = limited(LIMIT)
    container.control_block.set_surcharges({UUID: Surcharge(memory_bytes=2 * LIMIT)})
    assert container.run("paths", "cuMemAlloc", str(PIECE))[0] == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shadow", [False, True], ids=["dlsym", "shadow"])
@pytest.mark.parametrize("path", ["cuMemAlloc", "cuMemAllocAsync"])
def test_the_limit_holds_however_the_program_finds_the_driver(
    limited: Limited, way: str, shadow: bool, path: str
) -> None:
    if shadow and way == "path":
        pytest.skip("opening the driver by its path bypasses the library of that name; the dlsym form catches it")
    count, most, _, error = limited(LIMIT).run("paths", path, str(PIECE), shadow=shadow, KERF_TEST_WAY=way)
    assert (count, most, error) == (LIMIT // PIECE, LIMIT // PIECE * PIECE, OUT_OF_MEMORY)


def test_small_allocations_are_charged_in_the_drivers_granularity(limited: Limited) -> None:
    container = limited(MIB)
    count, most, _, error = container.run("paths", "cuMemAlloc", "700")
    assert (count, most, error) == (1024, MIB, OUT_OF_MEMORY)


def test_the_memory_of_a_context_is_charged(built: Path, tmp_path: Path) -> None:
    node = Node(built, tmp_path / "node", context_mib=20)
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=LIMIT),)), context_bytes=20 * MIB)
    count, most, after, _ = container.run("paths", "cuMemAlloc", str(PIECE))
    assert (count, most, after) == (10, LIMIT, 20 * MIB)


def test_a_context_that_does_not_fit_is_refused(node: Node) -> None:
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=MIB),)), context_bytes=2 * MIB)
    program = container.start("paths", "cuMemAlloc", "512")
    words = program.communicate(timeout=60)[1]
    assert "cuDevicePrimaryCtxRetain" in words
    assert words.endswith(": 2\n")


def test_a_gpu_that_the_container_does_not_have_gives_it_no_memory(node: Node) -> None:
    other = "GPU-00000000-0000-0000-0000-0000000000ff"
    container = node.container("a", Rules(gpus=(GpuRule(uuid=other, memory_limit_bytes=LIMIT),)))
    count, most, _, error = container.run("paths", "cuMemAlloc", str(PIECE))
    assert (count, most, error) == (0, 0, OUT_OF_MEMORY)


def test_the_container_sees_its_slice(limited: Limited) -> None:
    total, free, device, free_then, *linker = limited(LIMIT).run("view")
    assert (total, free, device, free_then) == (LIMIT, LIMIT, LIMIT, LIMIT - 64 * MIB)
    assert linker == [1, 1, 1], "dlsym answers for all other names as before"


@pytest.mark.parametrize("pools", [{}, {"KERF_TEST_POOLS": "1"}], ids=["plain", "pools"])
def test_sixty_four_processes_never_have_more_than_the_limit_together(limited: Limited, pools: dict[str, str]) -> None:
    container = limited(1000 * MIB)
    over, refused, left, failed = container.run("crowd", "64", "200", str(1000 * MIB), **pools)
    reading = container.read()
    assert (over, left, failed, reading.attaches) == (0, 0, 0, 64)
    assert refused > 0, "they reached the limit"
    assert reading.gpus[0].peak_bytes <= 1000 * MIB


@pytest.mark.parametrize("how", ["fork", "clone"])
def test_a_child_has_a_slot_of_its_own_with_and_without_fork_handlers(limited: Limited, how: str) -> None:
    container = limited(LIMIT)
    both, alone, child, none = container.run("forks", how, "before")
    assert (both, alone, child, none) == (64 * MIB, 32 * MIB, 0, 0)
    assert (container.read().attaches, container.read().gpus[0].peak_bytes) == (2, 64 * MIB)


@pytest.mark.parametrize("how", ["fork", "clone"])
def test_the_end_of_a_child_releases_nothing_of_its_parent(limited: Limited, how: str) -> None:
    container = limited(LIMIT)
    program = container.start("forks", how, "after", KERF_TEST_HOLD="1")
    assert program.stdout is not None
    held = program.stdout.read(len("33554432 0 "))
    assert held.split() == [str(32 * MIB), "0"]
    assert container.read().gpus[0].account_bytes == 32 * MIB
    assert program.stdin is not None
    program.stdin.write("x")
    assert numbers(program) == [0]


def test_children_forked_while_threads_allocate_find_no_lock_held_and_no_change_half_done(limited: Limited) -> None:
    """By fork and by the system call: each child tries to allocate, is refused by the driver, and ends."""
    container = limited(LIMIT)
    well, left = container.run("forks", "busy", "200")
    assert (well, left) == (200, 0)


def test_processes_killed_at_any_moment_leave_no_byte_behind(node: Node) -> None:
    """kill -9 in the middle of allocations, many times; afterwards one process can allocate the whole limit."""
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=1000 * MIB),)))
    for attaches in range(4, 84, 4):
        victims = [container.start("crowd", "victim") for _ in range(4)]
        until(lambda wanted=attaches: container.read().attaches >= wanted)
        for victim in victims:
            victim.kill()
            victim.communicate()
    count, most, after, _ = container.run("paths", "cuMemAlloc", str(10 * MIB))
    assert (count, most, after) == (100, 1000 * MIB, 0)
    assert container.read().gpus[0].account_bytes == 0


@pytest.mark.parametrize("moment", ["reserved", "charged", "releasing"])
def test_a_process_that_dies_between_two_steps_of_a_change_is_repaired(limited: Limited, moment: str) -> None:
    """The three states that a crash can leave, written by hand: sum raised but not recorded, recorded with its intent,
    lowered in the record only."""
    container = limited(LIMIT)
    container.run("view")
    with (container.control_block.folder / "counters").open("r+b") as file:
        counters = container.raw()
        slot = next(place for place in range(256) if counters.process[place].state & 1)
        counters.process[slot].intent_bytes[0] = 40 * MIB
        counters.process[slot].charged_bytes[0] = {"reserved": 0, "charged": 40 * MIB, "releasing": 0}[moment]
        counters.gpu[0].account = (counters.gpu[0].account & ~((1 << 48) - 1)) | 40 * MIB
        os.pwrite(file.fileno(), bytes(counters), 0)
    count, most, _, _ = container.run("paths", "cuMemAlloc", str(PIECE))
    assert (count, most) == (LIMIT // PIECE, LIMIT // PIECE * PIECE)
    assert container.read().gpus[0].account_bytes == 0


def test_a_lowered_limit_keeps_allocations_and_allows_no_more(node: Node) -> None:
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=LIMIT),)))
    container.control_block.write(
        Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=2 * PIECE),)), context_bytes=0, driver_path=str(node.driver)
    )
    count, most, _, _ = container.run("paths", "cuMemAlloc", str(PIECE))
    assert (count, most) == (2, 2 * PIECE)
