"""GPU time beyond a slice's share, while others leave theirs unused: in virtual time, by the agent's slice registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.node_agent.strategies.rules import Policy
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Part, Slice
from tests.interposer.node import START_NS, UUID, Node, numbers

SECONDS = 5


def slice_(name: str, milli: int, limit_milli: int = 0) -> Slice:
    part = Part(uuid=UUID, memory_mib=64, compute_milli=milli, compute_limit_milli=limit_milli)
    return Slice(uid=name, container="main", strategy="interposer", parts=(part,))


@pytest.fixture
def node(built: Path, tmp_path: Path) -> Node:
    return Node(built, tmp_path / "node", clients=2)


@pytest.fixture
def registry(node: Node) -> Iterator[SliceRegistry]:
    made = SliceRegistry(node.folder, Policy(), lambda: START_NS)
    yield made
    made.close()


def together(node: Node, registry: SliceRegistry, *loads: tuple[Slice, tuple[str, ...]]) -> list[list[int]]:
    """What the programs of these slices print."""
    for one, _ in loads:
        registry.put(one)
    running = []
    for client, (one, words) in enumerate(loads):
        control_block = {
            "KERF_DIRECTORY": str(registry.folder(one.key)),
            "LD_PRELOAD": str(node.built / "enforcement" / "test" / "libkerf.so"),
        }
        running.append(node.bare("share", *words, KERF_FAKE_CUDA_CLIENT=str(client), **control_block))
    return [numbers(program) for program in running]


SATURATE = ("saturate", "250000", str(SECONDS))
ONE_REQUEST = ("requests", "1000000", "1", "4000000000", str(SECONDS))
"""A kernel of 1 ms every 4 s."""


@pytest.mark.parametrize(("limit_milli", "expected"), [(0, 300), (600, 600), (1000, 950)])
def test_a_slice_uses_the_time_that_an_idle_neighbour_leaves_up_to_its_limit(
    node: Node, registry: SliceRegistry, limit_milli: int, expected: int
) -> None:
    """All of the GPU's time is guaranteed: 30 % to it, 70 % to the neighbour."""
    mine, _ = together(
        node, registry, (slice_("burst", 300, limit_milli), SATURATE), (slice_("other", 700), ONE_REQUEST)
    )
    mean = sum(mine[1:]) / len(mine[1:]) / 1e6
    assert expected - 10 <= mean <= expected + (50 if limit_milli == 1000 else 10)


def test_beside_a_busy_neighbour_both_have_their_guarantees(node: Node, registry: SliceRegistry) -> None:
    mine, other = together(
        node, registry, (slice_("burst", 300, 1000), SATURATE), (slice_("other", 700), ("saturate", "500000", "5"))
    )
    assert sum(mine[1:]) / len(mine[1:]) / 1e6 == pytest.approx(300, abs=10)
    assert sum(other[1:]) / len(other[1:]) / 1e6 == pytest.approx(700, abs=10)


def test_requests_of_the_neighbour_are_hardly_later_than_without_the_loan(built: Path, tmp_path: Path) -> None:
    """A request of 20 ms every 100 ms, within the neighbour's 70 %."""
    p99: dict[int, int] = {}
    used: dict[int, float] = {}
    for limit_milli in (0, 1000):
        node = Node(built, tmp_path / f"node{limit_milli}", clients=2)
        blocks = SliceRegistry(node.folder, Policy(), lambda: START_NS)
        mine, (_, _, p99[limit_milli], _) = together(
            node,
            blocks,
            (slice_("burst", 300, limit_milli), SATURATE),
            (slice_("other", 700), ("requests", "500000", "40", "100000000", str(SECONDS))),
        )
        used[limit_milli] = sum(mine[1:]) / len(mine[1:]) / 1e6
        blocks.close()
    assert used[1000] > 2 * used[0]
    assert p99[1000] <= p99[0] * 1.05
