"""The work for which a launch waits may itself wait for a later launch: every wait at the gate is limited, in virtual
time."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import ControlBlock, GpuRule, Rules, folder_name
from tests.interposer.node import UUID, Container, Node, numbers

MS = 1_000_000
ROUNDS = 6


def container(built: Path, folder: Path, rule: GpuRule) -> Container:
    return Node(built, folder, clients=1).container("a", Rules(gpus=(rule,)))


RULES = [
    GpuRule(uuid=UUID, compute_milli=300),
    GpuRule(uuid=UUID, compute_milli=300, period_ns=50 * MS, window_ns=15 * MS),
    GpuRule(uuid=UUID, in_flight_us=500),
]


@pytest.mark.parametrize("rule", RULES, ids=["tokens", "timetable", "bounded"])
def test_a_kernel_that_waits_for_a_later_launch_does_not_hang(built: Path, tmp_path: Path, rule: GpuRule) -> None:
    """The rounds do not get longer and longer, although each is learned as the kernel's duration."""
    one = container(built, tmp_path, rule)
    longest, _, rounds = one.run("awaits", str(ROUNDS), "1", "60")
    assert rounds == ROUNDS
    assert longest <= 1000 * MS
    assert one.raw().gpu[0].overdue > 0


def test_twenty_launches_for_which_one_kernel_waits_pass_one_by_one(built: Path, tmp_path: Path) -> None:
    longest, _, _ = container(built, tmp_path, RULES[0]).run("awaits", "1", "20", "60")
    assert longest <= 30_000 * MS


def test_launches_that_pass_after_the_maximum_wait_are_a_debt(built: Path, tmp_path: Path) -> None:
    """A program that consists of such rounds gets its share of the time in the long run."""
    _, gpu_ns, rounds = container(built, tmp_path, RULES[0]).run("awaits", "1000", "1", "30")
    assert rounds > 5
    assert gpu_ns <= 30_000 * MS * 0.3 + 1500 * MS


def test_a_waiting_thread_does_not_block_the_launch_for_which_it_waits(built: Path, tmp_path: Path) -> None:
    """More launches on one stream than the library has events: none of them waits with the lock held."""
    node, low = Node(built, tmp_path, clients=1), ("low", "main")
    ControlBlock(node.folder / folder_name(low), lambda: 0)
    high = node.container("high", Rules(gpus=(GpuRule(uuid=UUID),), peers=(low,)))
    (took,) = high.run("awaits", "thread")
    assert took <= 1000 * MS


def test_the_wait_for_another_processs_endless_work_is_limited(built: Path, tmp_path: Path) -> None:
    """Two processes of one container share its bound of work in flight; one of them runs a kernel of two seconds."""
    node = Node(built, tmp_path, clients=2)
    one = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, in_flight_us=500),)))
    late = one.start("awaits", "late", KERF_FAKE_CUDA_CLIENT="0")
    beside = one.start("share", "saturate", "450000", "1", KERF_FAKE_CUDA_CLIENT="1")
    assert sum(numbers(beside)) >= 5 * 450_000
    numbers(late)


def test_a_destroyed_context_does_not_lose_the_launch_of_a_thread_that_waits_in_another(
    built: Path, tmp_path: Path
) -> None:
    one = container(built, tmp_path, GpuRule(uuid=UUID, compute_milli=100))
    (truly_ns,) = one.run("moves")
    assert abs(one.read().gpus[0].used_ns - truly_ns) < MS


@pytest.mark.parametrize(("milli", "late_us"), [(500, 0), (300, 0), (900, 0), (500, 150_000)])
def test_a_collective_of_two_gpus_takes_as_long_as_the_share_explains(
    built: Path, tmp_path: Path, milli: int, late_us: int
) -> None:
    """A GPU whose kernel spins is charged. If it waits for its share then, the other GPU's kernel spins.

    Before, the waits grew from round to round: a half took up to a thousand times longer than without limits.
    """
    node = Node(built, tmp_path, devices=2, late_ns=60_000, launch_ns=5_000)
    second = f"{UUID[:-1]}2"
    rules = Rules(gpus=tuple(GpuRule(uuid=uuid, compute_milli=milli) for uuid in (UUID, second)))
    rounds_us = 400 * 270
    (took_us,) = node.container("pair", rules).run("collective", "400", str(late_us))
    debt_us = late_us * 1000 // milli  # the kernel that spun for so long has to be paid for
    assert rounds_us * 1000 / milli < took_us + debt_us + 25_000
    assert took_us < 1.8 * rounds_us * 1000 / milli + debt_us


def test_first_launches_do_not_wait_for_an_idle_gpu_once_others_were_short(built: Path, tmp_path: Path) -> None:
    """A program that compiles while it runs has many functions that were never measured.

    Before, each of them waited until nothing was in flight: 400 kernels of 50 us took 64 ms at a share of nine tenths.
    """
    node = Node(built, tmp_path, late_ns=60_000, launch_ns=5_000)
    one = node.container("compiling", Rules(gpus=(GpuRule(uuid=UUID, compute_milli=900),)))
    (took_us,) = one.run("loads", "400")
    assert took_us < 1.2 * 400 * 50 / 0.9
