"""The low tier runs in the gaps of the high tier and costs it little, in virtual time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import ControlBlock, GpuRule, Rules, folder_name
from tests.interposer.node import HIGH, LOW, UUID, Node, high_and_low, numbers, until
from tests.support.leases import is_leased, lease

SECONDS = 5


def run(
    built: Path,
    folder: Path,
    requests: tuple[int, int, int],
    low_kernel_ns: int,
    *,
    low_tier: bool = True,
    in_flight_us: int = 1000,
    floor: int = 0,
    switch_ns: int = 0,
) -> tuple[list[int], int]:
    """Returns the output of the high tier (requests, p50, p99, GPU time) and the low tier's GPU time.

    `low_kernel_ns` 0: the high tier runs alone.
    """
    node = Node(built, folder, clients=2 if low_kernel_ns else 1, switch_ns=switch_ns)
    for key in (HIGH, LOW):
        ControlBlock(node.folder / folder_name(key), lambda: 0)
    high = node.container(folder_name(HIGH), Rules(gpus=(GpuRule(uuid=UUID),), peers=(LOW,) if low_tier else ()))
    gpus = (GpuRule(uuid=UUID, in_flight_us=in_flight_us if low_tier else 0),)
    low = node.container(
        folder_name(LOW),
        Rules(gpus=gpus, low=low_tier, floor_milli=floor, idle_for_ns=200_000, peers=(HIGH,) if low_tier else ()),
    )
    kernel_ns, kernels, period_ns = requests
    serving = high.start(
        "share", "requests", str(kernel_ns), str(kernels), str(period_ns), str(SECONDS), KERF_FAKE_CUDA_CLIENT="0"
    )
    if not low_kernel_ns:
        return numbers(serving), 0
    filling = low.start("share", "saturate", str(low_kernel_ns), str(SECONDS), KERF_FAKE_CUDA_CLIENT="1")
    return numbers(serving), sum(numbers(filling))


FIFTH_IDLE = [(1_000_000, 40, 50_000_000), (2_500_000, 32, 100_000_000), (5_000_000, 4, 0)]
"""Requests of 40 and 80 ms at even intervals, and of 20 ms at random ones."""


@pytest.mark.parametrize("requests", FIFTH_IDLE, ids=str)
@pytest.mark.parametrize("low_kernel_ns", [100_000, 500_000])
def test_beside_a_high_tier_with_a_fifth_idle_the_low_tier_costs_less_than_one_percent_and_five_of_p99(
    built: Path, tmp_path: Path, requests: tuple[int, int, int], low_kernel_ns: int
) -> None:
    alone, _ = run(built, tmp_path / "alone", requests, 0)
    beside, low_ns = run(built, tmp_path / "beside", requests, low_kernel_ns)
    assert beside[0] >= alone[0] * 0.99
    assert beside[2] <= alone[2] * 1.05
    idle_ns = SECONDS * 1_000_000_000 - alone[3]
    assert low_ns >= idle_ns * 0.8, "it uses four fifths of the gaps"


SHORT = [(250_000, 12, 3_750_000), (500_000, 13, 8_125_000), (250_000, 12, 0), (500_000, 13, 0), (100_000, 10, 0)]
"""Requests that leave a fifth of the GPU idle: of 3 and 6.5 ms at even intervals; of 3, 6.5 and 1 ms at random ones."""


@pytest.mark.parametrize("requests", SHORT, ids=str)
@pytest.mark.parametrize("low_kernel_ns", [100_000, 250_000, 500_000])
def test_short_requests_lose_less_than_five_percent_of_p99_too(
    built: Path, tmp_path: Path, requests: tuple[int, int, int], low_kernel_ns: int
) -> None:
    """A launch that runs when a request arrives cannot be stopped: it must be short, or end before the next request is
    likely."""
    alone, _ = run(built, tmp_path / "alone", requests, 0)
    beside, _ = run(built, tmp_path / "beside", requests, low_kernel_ns, in_flight_us=500)
    assert beside[0] >= alone[0] * 0.99
    assert beside[2] <= alone[2] * 1.05


SWITCH_NS = 200_000
"""What the change to another process's context takes, about as on an H100 (docs/decisions/0268)."""


@pytest.mark.parametrize("requests", SHORT, ids=str)
@pytest.mark.parametrize("low_kernel_ns", [100_000, 250_000, 500_000])
def test_short_requests_lose_less_than_seven_percent_of_p99_where_contexts_take_time_to_change(
    built: Path, tmp_path: Path, requests: tuple[int, int, int], low_kernel_ns: int
) -> None:
    """The low tier does not use pauses that both changes would eat up. One remains, 3 % of a request of 6.5 ms."""
    alone, _ = run(built, tmp_path / "alone", requests, 0, switch_ns=SWITCH_NS)
    beside, _ = run(built, tmp_path / "beside", requests, low_kernel_ns, in_flight_us=500, switch_ns=SWITCH_NS)
    assert beside[2] <= alone[2] * 1.07


def test_the_low_tier_runs_in_predictable_pauses(built: Path, tmp_path: Path) -> None:
    alone, _ = run(built, tmp_path / "alone", SHORT[1], 0)
    _, low_ns = run(built, tmp_path / "beside", SHORT[1], 250_000, in_flight_us=500)
    assert low_ns >= (SECONDS * 1_000_000_000 - alone[3]) * 0.5


def test_the_low_tier_gets_the_gpu_when_the_high_tier_stays_idle(built: Path, tmp_path: Path) -> None:
    """What it has learned of short requests delays it only as long as a request is likely."""
    high, low = high_and_low(Node(built, tmp_path, clients=1), in_flight_us=500)
    numbers(high.start("share", "requests", "250000", "12", "3750000", "1"))
    (got,) = low.run("share", "saturate", "400000", "1")
    assert got > 950_000_000


def test_without_the_gate_the_drivers_time_slicing_slows_the_high_tier_down(built: Path, tmp_path: Path) -> None:
    """Shows that the fake driver would reveal a missing gate."""
    alone, _ = run(built, tmp_path / "alone", FIFTH_IDLE[0], 0)
    beside, _ = run(built, tmp_path / "beside", FIFTH_IDLE[0], 500_000, low_tier=False)
    assert beside[2] > 2 * alone[2]


@pytest.mark.parametrize("in_flight_us", [500, 2000, 4000])
def test_the_low_tiers_work_in_flight_bounds_how_long_the_high_tier_waits(
    built: Path, tmp_path: Path, in_flight_us: int
) -> None:
    alone, _ = run(built, tmp_path / "alone", FIFTH_IDLE[0], 0)
    beside, _ = run(built, tmp_path / "beside", FIFTH_IDLE[0], 250_000, in_flight_us=in_flight_us)
    assert beside[2] - alone[2] <= in_flight_us * 1000 + 250_000


def test_the_low_tier_has_a_minimum_share_beside_a_high_tier_that_is_never_idle(built: Path, tmp_path: Path) -> None:
    """At least half of the configured share, and never more: beside a busy peer, events also measure the peer's time
    slices."""
    always_busy = (1_000_000, 100, 100_000_000)
    _, none = run(built, tmp_path / "none", always_busy, 500_000)
    _, least = run(built, tmp_path / "least", always_busy, 500_000, floor=100)
    assert none < SECONDS * 1_000_000
    assert SECONDS * 50_000_000 <= least <= SECONDS * 101_000_000


def test_a_peer_that_truncates_its_signal_does_no_harm(built: Path, tmp_path: Path) -> None:
    """A mapping of the file would kill its reader. A truncated signal means that the peer is idle."""
    node = Node(built, tmp_path, clients=1)
    high = ControlBlock(node.folder / folder_name(HIGH), lambda: 0)
    low = node.container(folder_name(LOW), Rules(gpus=(GpuRule(uuid=UUID),), low=True, peers=(HIGH,)))
    working = low.start("share", "saturate", "500000", "40")
    until(lambda: low.raw().gpu[0].used_ns > 0)
    os.truncate(high.folder / "signal", 0)
    assert sum(numbers(working)) > 0


def test_a_peer_that_holds_a_lease_on_its_signal_delays_no_launch(built: Path, tmp_path: Path) -> None:
    """No agent runs, or there would be no lease. It counts as idle; the kernel has not ended its lease, for which an
    opening without O_NONBLOCK waits."""
    node = Node(built, tmp_path, clients=1)
    high = ControlBlock(node.folder / folder_name(HIGH), lambda: 0)
    low = node.container(folder_name(LOW), Rules(gpus=(GpuRule(uuid=UUID),), low=True, peers=(HIGH,)))
    high.close()
    with lease(high.folder / "signal") as granted:
        assert granted
        (got,) = low.run("share", "saturate", "500000", "1")
        assert got > 950_000_000
        assert is_leased(high.folder / "signal")


def test_a_signal_that_cannot_be_used_is_not_opened_again_at_each_launch(built: Path, tmp_path: Path) -> None:
    """Its header is damaged. 6,000 launches in three seconds open it three or four times."""
    node = Node(built, tmp_path, clients=1)
    high = ControlBlock(node.folder / folder_name(HIGH), lambda: 0)
    low = node.container(folder_name(LOW), Rules(gpus=(GpuRule(uuid=UUID),), low=True, peers=(HIGH,)))
    (high.folder / "signal").write_bytes(b"\0" * 4096)
    with openings(high.folder / "signal") as count:
        assert len(low.run("share", "saturate", "500000", "3")) == 3
        assert 1 <= count() <= 5


@contextlib.contextmanager
def openings(path: Path) -> Iterator[Callable[[], int]]:
    """Counts how often the file is opened meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    opened, closed = 0x20, 0x10
    try:
        assert libc.inotify_add_watch(watch, bytes(path), opened | closed) > 0
        yield lambda: sum(mask == opened for _, mask, _, _ in struct.iter_unpack("iIII", os.read(watch, 1 << 20)))
    finally:
        os.close(watch)


def test_a_slice_that_has_waited_for_its_work_is_idle_at_once(built: Path, tmp_path: Path) -> None:
    """Also where most of its launches have no event of their own, since much work is in flight. An event that is
    recorded after the wait would be done some microseconds later."""
    high, low = high_and_low(Node(built, tmp_path / "node", clients=2, event_ns=4_000))
    working = high.start("burst", "20", "20000", "1500", "1500", "1", KERF_FAKE_CUDA_CLIENT="0")
    filling = low.start("share", "saturate", "100000", "3", KERF_FAKE_CUDA_CLIENT="1")
    gpu_ns, elapsed_ns = numbers(working)
    idle_ns = elapsed_ns - gpu_ns
    assert gpu_ns == 1500 * 20 * 20_000
    assert 0.2 * idle_ns < sum(numbers(filling)) < idle_ns + 200_000_000
