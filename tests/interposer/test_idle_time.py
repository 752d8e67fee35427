"""Time in which a program has nothing on the GPU is not charged, however it learns that its work is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import UUID, Container, Node

MS = 1_000_000
LAUNCH_NS = 2_000
"""What a launch costs the program on the fake driver."""
SHARE = GpuRule(uuid=UUID, compute_milli=300)


def container(node: Node) -> Container:
    return node.container("a", Rules(gpus=(SHARE,)))


@pytest.mark.parametrize("waits", ["0", "1"], ids=["polling", "waiting"])
@pytest.mark.parametrize(
    ("launches", "kernel_ns", "pause_us"), [(8, 20_000, 20_000), (1, 5_000, 1_000), (30, 9_000, 700)]
)
def test_pauses_of_which_no_call_tells_are_not_charged(
    node: Node, waits: str, launches: int, kernel_ns: int, pause_us: int
) -> None:
    """A program that learns of the end by a host callback, or by a word in memory, calls nothing that is hooked."""
    one = container(node)
    gpu_ns, elapsed_ns = one.run("burst", str(launches), str(kernel_ns), str(pause_us), "100", waits)
    charged_ns = one.read().gpus[0].used_ns
    assert gpu_ns == 100 * launches * kernel_ns
    # On an idle stream the time from the first event to the launch counts, which is the CPU time of the launch.
    assert 0.99 * gpu_ns <= charged_ns <= 1.01 * gpu_ns + 100 * LAUNCH_NS
    if launches * kernel_ns < 0.3 * pause_us * 1000:  # within its share: nothing waits
        assert elapsed_ns < 1.05 * 100 * (pause_us * 1000 + launches * LAUNCH_NS) + 5 * MS


@pytest.mark.parametrize("call", ["copy", "memset", "default", "host", "value", "batch"])
def test_work_between_launches_closes_the_batch(node: Node, call: str) -> None:
    """A copy or a wait of 2 ms between two kernels of 20 us is no GPU time."""
    one = container(node)
    (gpu_ns,) = one.run("between", call, "100")
    assert gpu_ns == 200 * 20_000
    assert one.read().gpus[0].used_ns <= 1.02 * gpu_ns + MS


def test_a_launch_that_waits_in_the_driver_does_not_stop_another_gpus_launch(built: Path, tmp_path: Path) -> None:
    """As where a module is loaded behind a collective that the other launch belongs to."""
    node = Node(built, tmp_path / "two", devices=2)
    uuids = UUID, f"{UUID[:-1]}2"
    one = node.container("a", Rules(gpus=tuple(GpuRule(uuid=uuid, compute_milli=500) for uuid in uuids)))
    (launched,) = one.run("two_gpus")
    assert launched == 1


@pytest.mark.parametrize("event_ns", [0, 4_000])
def test_a_launch_longer_than_expected_is_charged_in_the_mean_where_no_call_tells_its_end(
    built: Path, tmp_path: Path, event_ns: int
) -> None:
    """The end of most launches is left out while much work is in flight; samples charge what that leaves out."""
    one = container(Node(built, tmp_path / "node", clients=1, event_ns=event_ns))
    before_ns = 50 * 150_000
    gpu_ns, _ = one.run("surge", "1500", "150", "2000")
    charged_ns = one.read().gpus[0].used_ns - before_ns
    assert gpu_ns == 1500 * (2_000_000 + 150_000)
    assert 0.8 * gpu_ns < charged_ns < 1.6 * gpu_ns
