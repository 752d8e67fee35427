"""While much work is in flight most launches have no event of their own (docs/decisions/0263). That
neither slows programs nor lets them have more than their share."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import UUID, Container, Node, high_and_low, numbers

PEERS = (("peer", "main"),)
EVENT_NS = 4_000


def timed(built: Path, folder: Path, in_flight_us: int = 20_000) -> Container:
    """A slice without a limit of its own, whose launches are timed for a peer."""
    node = Node(built, folder / "node", clients=1, event_ns=EVENT_NS)
    rule = GpuRule(uuid=UUID, in_flight_us=in_flight_us)
    return node.container("a", Rules(gpus=(rule,), peers=PEERS), now_ns=1 << 62)


def in_steps(one: Container, command: tuple[str, ...], rules: tuple[Rules, ...], last: str) -> None:
    """Each time the program says that it is ready, it gets the next rules and goes on."""
    program = one.start(*command)
    assert program.stdout is not None
    assert program.stdin is not None
    for now in rules:
        assert program.stdout.readline() == "ready\n"
        one.control_block.write(now, context_bytes=0, driver_path=str(one.node.driver))
        program.stdin.write("\n")
        program.stdin.flush()
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out) == (0, f"{last}\n"), err


@pytest.mark.parametrize("way", ["asks", "adds", "waits"])
def test_a_program_that_does_not_wait_for_its_sample_gets_no_more_than_its_share(
    built: Path, tmp_path: Path, way: str
) -> None:
    node = Node(built, tmp_path / "node", clients=1, event_ns=EVENT_NS)
    gpu_ns, elapsed_ns = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, compute_milli=300),))).run("ends", way)
    assert 0.15 < gpu_ns / elapsed_ns < 0.33


def test_a_stream_is_destroyed_while_launches_are_not_timed(built: Path, tmp_path: Path) -> None:
    """The fake driver ends a program that uses a stream after that."""
    node = Node(built, tmp_path / "node", clients=1)
    rules = Rules(gpus=(GpuRule(uuid=UUID, in_flight_us=20_000),), peers=PEERS)
    one = node.container("a", rules, now_ns=1 << 62)
    in_steps(one, ("ends", "destroyed"), (msgspec.structs.replace(rules, peers_held=True), rules), "alive")


@pytest.mark.parametrize(("kernel_ns", "in_flight_us", "most_events"), [(100_000, 50_000, 2000), (35_000, 2000, 1000)])
def test_a_long_queue_needs_few_events(
    built: Path, tmp_path: Path, kernel_ns: int, in_flight_us: int, most_events: int
) -> None:
    """3,000 launches in batches of at most 250 us, each of which begins with the end of the one before it. Where there
    is no room in flight, launches wait until there is room for several."""
    one = timed(built, tmp_path, in_flight_us)
    events, _ = one.run("ends", "queue", str(kernel_ns))
    assert 3000 * kernel_ns // 250_000 < events < most_events
    assert one.read().gpus[0].untimed == 0
    assert 3080 * kernel_ns <= one.read().gpus[0].used_ns < 1.1 * 3080 * kernel_ns


@pytest.mark.parametrize("first_ns", [300_000, 30_000])
def test_what_ran_while_launches_were_not_timed_is_not_charged(built: Path, tmp_path: Path, first_ns: int) -> None:
    """Neither behind a batch that is closed nor behind one that the next launch closes."""
    node = Node(built, tmp_path / "node", clients=1)
    rules = Rules(gpus=(GpuRule(uuid=UUID, in_flight_us=20_000),), peers=PEERS)
    one = node.container("a", rules, now_ns=1 << 62)
    in_steps(one, ("ends", "untimed", str(first_ns)), (msgspec.structs.replace(rules, peers_held=True), rules), "done")
    truly_ns = 81 * (300_000 + first_ns)
    assert truly_ns <= one.read().gpus[0].used_ns < 1.1 * truly_ns


def test_launches_on_the_legacy_stream_are_measured_whatever_context_is_current(built: Path, tmp_path: Path) -> None:
    one = timed(built, tmp_path)
    (gpu_ns,) = one.run("ends", "legacy")
    used = one.read().gpus[0]
    assert used.untimed == 0
    assert gpu_ns <= used.used_ns < 1.2 * gpu_ns


def test_a_question_whether_work_is_done_is_answered_as_without_the_library(built: Path, tmp_path: Path) -> None:
    assert timed(built, tmp_path).run("ends", "query") == [0]


def test_overlaps_are_kept_where_launching_takes_longer_than_a_pause(built: Path, tmp_path: Path) -> None:
    (lost,) = timed(built, tmp_path).run("ends", "slow")
    assert lost <= 1


def test_a_slice_that_waits_by_an_event_of_its_own_is_idle_at_once(built: Path, tmp_path: Path) -> None:
    high, low = high_and_low(Node(built, tmp_path / "node", clients=2, event_ns=EVENT_NS))
    working = high.start("ends", "own", KERF_FAKE_CUDA_CLIENT="0")
    filling = low.start("share", "saturate", "100000", "3", KERF_FAKE_CUDA_CLIENT="1")
    gpu_ns, elapsed_ns = numbers(working)
    assert sum(numbers(filling)) > 0.2 * (elapsed_ns - gpu_ns)
