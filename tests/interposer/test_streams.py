"""Streams, contexts, callbacks and threads while launches are measured, in virtual time: nothing breaks, and all time
is accounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import ControlBlock, GpuRule, Rules, folder_name
from tests.interposer.node import UUID, Container, Node, numbers, until

MS = 1_000_000


def container(built: Path, folder: Path, milli: int, clients: int = 1) -> Container:
    return Node(built, folder, clients=clients).container("a", Rules(gpus=(GpuRule(uuid=UUID, compute_milli=milli),)))


@pytest.mark.parametrize("way", ["destroy", "contexts", "own", "capture", "joined", "callback"])
def test_the_program_continues_and_all_of_its_time_is_accounted(built: Path, tmp_path: Path, way: str) -> None:
    one = container(built, tmp_path, 500)
    (truly_ns,) = one.run("streams", way, KERF_TEST_WAY="threads" if way == "own" else "runtime")
    assert abs(one.read().gpus[0].used_ns - truly_ns) <= MS + truly_ns // 50


def test_pauses_between_launches_without_a_wait_are_not_charged(built: Path, tmp_path: Path) -> None:
    """It uses a quarter of the GPU and may use half: it is as fast as alone."""
    one = container(built, tmp_path, 500)
    truly_ns, took_ns = one.run("streams", "sparse")
    assert took_ns <= 1605 * MS
    assert abs(one.read().gpus[0].used_ns - truly_ns) <= truly_ns // 50
    assert one.read().gpus[0].waited_ns <= 10 * MS


def test_a_process_that_launches_and_then_does_something_else_delays_no_other_process(
    built: Path, tmp_path: Path
) -> None:
    """No call has queried its work; the container's bound of work in flight uses the estimated end."""
    one = Node(built, tmp_path, clients=2).container("a", Rules(gpus=(GpuRule(uuid=UUID, in_flight_us=500),)))
    away = one.start("streams", "leaves", KERF_FAKE_CUDA_CLIENT="0")
    (got_ns,) = one.run("share", "saturate", "450000", "1", KERF_FAKE_CUDA_CLIENT="1")
    assert got_ns >= 900 * MS
    numbers(away)


def test_a_launch_on_a_stream_of_a_context_that_is_not_current_passes_the_gate_too(built: Path, tmp_path: Path) -> None:
    """A kernel that belongs to no context runs in its stream's context."""
    (gpu_ns,) = container(built, tmp_path, 100).run("streams", "elsewhere")
    assert gpu_ns <= 3000 * MS * 0.1 + 20 * MS


def test_the_time_of_a_kernel_is_charged_if_its_context_is_destroyed_while_it_runs(built: Path, tmp_path: Path) -> None:
    (gpu_ns,) = container(built, tmp_path, 100).run("streams", "gone")
    assert gpu_ns <= 5000 * MS * 0.1 + 120 * MS


def test_a_thread_that_is_cancelled_while_it_launches_leaves_nothing_locked(built: Path, tmp_path: Path) -> None:
    """It reads its peers' signals while it waits, and reading a file is a cancellation point."""
    node, other = Node(built, tmp_path, clients=1), ("other", "main")
    ControlBlock(node.folder / folder_name(other), lambda: 0)
    one = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, compute_milli=500),), peers=(other,)))
    assert one.run("streams", "cancel") == [20]


def test_a_broken_context_leaves_nothing_in_flight_for_others_to_wait_for(built: Path, tmp_path: Path) -> None:
    one = container(built, tmp_path, 500)
    program = one.start("streams", "broken")
    until(lambda: one.raw().gpu[0].launches == 16)
    until(lambda: one.raw().process[0].in_flight_ns[0] == 0)
    program.communicate(timeout=60)
    assert program.returncode == 0


def test_a_callback_within_an_allocation_can_wait_and_allocate(built: Path, tmp_path: Path) -> None:
    one = container(built, tmp_path, 500)
    (used,) = one.run("streams", "pools")
    assert one.read().gpus[0].account_bytes >= used


def test_threads_that_create_and_destroy_contexts_concurrently_leave_no_wrong_charge(
    built: Path, tmp_path: Path
) -> None:
    node = Node(built, tmp_path, clients=1, context_mib=8)
    one = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=1 << 30),)), context_bytes=8 << 20)
    program = one.start("streams", "retain")
    assert numbers(program) == [0]
    assert one.read().gpus[0].account_bytes == 0


def test_a_launch_is_refused_if_no_event_can_be_created(built: Path, tmp_path: Path) -> None:
    (gpu_ns,) = container(built, tmp_path, 100).run("streams", "events")
    assert gpu_ns <= 3000 * MS * 0.1 + 20 * MS
