"""Shares of GPU time, in the fake driver's virtual time: no figure depends on the load of this machine.

No agent runs here: the last orders stay in effect.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import ControlBlock, GpuRule, Rules, folder_name
from tests.interposer.node import UUID, Container, Node, numbers

SECONDS = 5
A_PERCENT_OF_A_SECOND = 10_000_000
PERIOD_NS = 50_000_000
NOT_SUPPORTED = 801


def side_by_side(
    built: Path, folder: Path, shares: tuple[int, ...], *, clients: int = 0, in_flight_us: int = 0, **settings: int
) -> list[Container]:
    """`settings`: of the fake driver, as for a node."""
    node = Node(built, folder, clients=clients or len(shares), **settings)
    keys = [(f"pod-{place}", "main") for place in range(len(shares))]
    for key in keys:
        ControlBlock(node.folder / folder_name(key), lambda: 0)  # each must exist before another reads its signal
    made = []
    for place, (key, milli) in enumerate(zip(keys, shares, strict=True)):
        start = sum(shares[:place]) * PERIOD_NS // 1000
        rule = GpuRule(
            uuid=UUID,
            compute_milli=milli,
            in_flight_us=in_flight_us,
            period_ns=PERIOD_NS,
            window_start_ns=start,
            window_ns=milli * PERIOD_NS // 1000,
        )
        made.append(node.container(folder_name(key), Rules(gpus=(rule,), peers=tuple(k for k in keys if k != key))))
    return made


@pytest.mark.parametrize(
    ("shares", "kernels_ns"),
    [
        ((100, 900), (1_000_000, 1_000_000)),
        ((100, 900), (300_000, 2_000_000)),
        ((100, 900), (5_000_000, 100_000)),
        ((300, 700), (1_000_000, 3_000_000)),
        ((500, 500), (1_000_000, 1_000_000)),
        ((500, 500), (50_000, 4_000_000)),
        ((200, 300, 500), (1_000_000, 700_000, 2_100_000)),
        ((100, 200, 700), (400_000, 400_000, 400_000)),
    ],
    ids=str,
)
def test_a_saturated_share_deviates_by_less_than_two_percent_of_a_gpu_in_every_second(
    built: Path, tmp_path: Path, shares: tuple[int, ...], kernels_ns: tuple[int, ...]
) -> None:
    containers = side_by_side(built, tmp_path / "node", shares)
    programs = [
        container.start("share", "saturate", str(kernel_ns), str(SECONDS), KERF_FAKE_CUDA_CLIENT=str(place))
        for place, (container, kernel_ns) in enumerate(zip(containers, kernels_ns, strict=True))
    ]
    for milli, program in zip(shares, programs, strict=True):
        for got_ns in numbers(program):
            assert abs(got_ns - milli * 1_000_000) < 2 * A_PERCENT_OF_A_SECOND


@pytest.mark.parametrize(
    ("shares", "kernels_ns"),
    [
        ((100, 900), (10_000_000, 1_000_000)),
        ((100, 900), (20_000_000, 1_000_000)),
        ((100, 900), (6_500_000, 500_000)),
        ((500, 500), (20_000_000, 1_000_000)),
        ((200, 300, 500), (20_000_000, 6_500_000, 1_000_000)),
    ],
    ids=str,
)
def test_launches_longer_than_a_window_take_no_time_from_others_in_the_long_run(
    built: Path, tmp_path: Path, shares: tuple[int, ...], kernels_ns: tuple[int, ...]
) -> None:
    """Launches wait for their debt, and the others recover the time that they lost. One launch more or less in a second
    is the best possible accuracy."""
    containers = side_by_side(built, tmp_path / "node", shares, in_flight_us=500)
    programs = [
        container.start("share", "saturate", str(ns), "8", KERF_FAKE_CUDA_CLIENT=str(place))
        for place, (container, ns) in enumerate(zip(containers, kernels_ns, strict=True))
    ]
    for milli, kernel_ns, program in zip(shares, kernels_ns, programs, strict=True):
        got = numbers(program)[1:]
        assert all(abs(got_ns - milli * 1_000_000) <= max(kernel_ns, 2 * A_PERCENT_OF_A_SECOND) for got_ns in got)
        assert abs(sum(got) / len(got) - milli * 1_000_000) < 1.5 * A_PERCENT_OF_A_SECOND


@pytest.mark.parametrize(
    ("shares", "kernel_ns"), [((500, 500), 10_000_000), ((200, 300, 500), 2_000_000), ((500, 500), 1_000_000)], ids=str
)
def test_shares_hold_where_contexts_take_time_to_change(
    built: Path, tmp_path: Path, shares: tuple[int, ...], kernel_ns: int
) -> None:
    """Launches that take turns come some at a time, and none begins while the one before it is still at work because of
    the change: the driver would slice them, and each slice costs two changes."""
    containers = side_by_side(
        built, tmp_path / "node", shares, in_flight_us=2000, switch_ns=200_000, launch_ns=5_000, late_ns=60_000
    )
    programs = [
        container.start("share", "saturate", str(kernel_ns), str(SECONDS), KERF_FAKE_CUDA_CLIENT=str(place))
        for place, container in enumerate(containers)
    ]
    for milli, program in zip(shares, programs, strict=True):
        got = numbers(program)[1:]
        assert abs(sum(got) / len(got) - milli * 1_000_000) < 3 * A_PERCENT_OF_A_SECOND


def test_the_counted_time_is_the_devices_time(built: Path, tmp_path: Path) -> None:
    containers = side_by_side(built, tmp_path / "node", (300, 700))
    programs = [
        c.start("share", "saturate", "1000000", str(SECONDS), KERF_FAKE_CUDA_CLIENT=str(i))
        for i, c in enumerate(containers)
    ]
    for container, program in zip(containers, programs, strict=True):
        truly_ns = sum(numbers(program))
        assert abs(container.read().gpus[0].used_ns - truly_ns) < SECONDS * A_PERCENT_OF_A_SECOND


def test_a_share_is_per_container_and_not_per_process(built: Path, tmp_path: Path) -> None:
    (container,) = side_by_side(built, tmp_path / "node", (300,), clients=3)
    programs = [
        container.start("share", "saturate", "500000", str(SECONDS), KERF_FAKE_CUDA_CLIENT=str(i)) for i in range(3)
    ]
    together = sum(sum(numbers(program)) for program in programs)
    assert abs(together - SECONDS * 300_000_000) < SECONDS * 2 * A_PERCENT_OF_A_SECOND


@pytest.mark.parametrize("way", ["runtime", "threads", "old", "names", "path"])
@pytest.mark.parametrize("what", ["kernel", "graph"])
def test_graphs_and_per_thread_streams_pass_the_gate_too(built: Path, tmp_path: Path, way: str, what: str) -> None:
    (container,) = side_by_side(built, tmp_path / "node", (250,))
    got = container.run("share", "saturate", "800000", str(SECONDS), what, KERF_TEST_WAY=way)
    assert all(abs(ns - 250_000_000) < 2 * A_PERCENT_OF_A_SECOND for ns in got)


def test_one_launch_longer_than_its_window_is_paid_back(built: Path, tmp_path: Path) -> None:
    """A kernel of half a second at a tenth of the GPU cannot be stopped; the next launch waits five seconds for the
    debt."""
    (container,) = side_by_side(built, tmp_path / "node", (100,))
    got = container.run("share", "saturate", "500000000", "20")
    assert sum(got) <= 20 * 100_000_000 + 500_000_000


def test_a_share_without_a_timetable_is_enforced_by_tokens_alone(built: Path, tmp_path: Path) -> None:
    node = Node(built, tmp_path / "node", clients=1)
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, compute_milli=400),)))
    assert all(
        abs(ns - 400_000_000) < 2 * A_PERCENT_OF_A_SECOND
        for ns in container.run("share", "saturate", "700000", str(SECONDS))
    )


def test_figures_are_the_same_run_after_run(built: Path, tmp_path: Path) -> None:
    def once(folder: Path) -> list[list[int]]:
        containers = side_by_side(built, folder, (200, 800))
        programs = [
            c.start("share", "saturate", "1000000", "2", KERF_FAKE_CUDA_CLIENT=str(i)) for i, c in enumerate(containers)
        ]
        return [numbers(program) for program in programs]

    assert once(tmp_path / "first") == once(tmp_path / "second")


def test_an_unlimited_launch_is_not_timed_at_all(built: Path, tmp_path: Path) -> None:
    node = Node(built, tmp_path / "node", clients=1)
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID),)))
    assert sum(container.run("share", "saturate", "1000000", "1")) >= 990_000_000
    assert container.read().gpus[0].launches == 0


def test_timing_does_not_invalidate_a_capture(built: Path, tmp_path: Path) -> None:
    """Kerf's events are queried while another stream captures in the global mode; captured launches are not work
    yet."""
    (container,) = side_by_side(built, tmp_path / "node", (250,))
    assert container.run("capture") == [53_000_000, 0, 50_000_000]
    assert container.read().gpus[0].launches == 54


def test_threads_of_one_process_share_its_share(built: Path, tmp_path: Path) -> None:
    (container,) = side_by_side(built, tmp_path / "node", (300,), clients=4)
    (together,) = container.run("threads", "4", str(SECONDS))
    assert abs(together - SECONDS * 300_000_000) < SECONDS * 2 * A_PERCENT_OF_A_SECOND


def test_the_smallest_share_goes_on(built: Path, tmp_path: Path) -> None:
    """It saves some of its share before it goes on, but never more than it may hold."""
    node = Node(built, tmp_path / "node", clients=1)
    one = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, compute_milli=2),)))
    gpu_ns, elapsed_ns = one.run("burst", "50", "20000", "0", "1", "1")
    assert gpu_ns == 1_000_000
    assert 350_000_000 < elapsed_ns < 550_000_000


def test_a_launch_on_several_gpus_at_once_is_refused_where_time_is_shared(built: Path, tmp_path: Path) -> None:
    """It would have to pass the gates of all of them. CUDA 13 has no such call any more."""
    node = Node(built, tmp_path / "node", devices=2)
    uuids = (UUID, UUID[:-1] + "2")
    shared = node.container("shared", Rules(gpus=tuple(GpuRule(uuid=uuid, compute_milli=200) for uuid in uuids)))
    whole = node.container("whole", Rules(gpus=tuple(GpuRule(uuid=uuid) for uuid in uuids)))
    assert (shared.run("kinds", "several"), whole.run("kinds", "several")) == ([NOT_SUPPORTED], [0])
