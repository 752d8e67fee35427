"""The GPU time that suspended slices leave to a new slice, in virtual time, with the agent's slice registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.node_agent.strategies.rules import Override, Policy
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Part, Slice
from tests.interposer.node import START_NS, UUID, Node, numbers

SECONDS = 5
STALE_S = 2


def slice_(name: str, milli: int) -> Slice:
    return Slice(
        uid=name, container="main", strategy="interposer", parts=(Part(uuid=UUID, memory_mib=64, compute_milli=milli),)
    )


@pytest.fixture
def node(built: Path, tmp_path: Path) -> Node:
    return Node(built, tmp_path / "node", clients=2)


@pytest.fixture
def registry(node: Node) -> Iterator[SliceRegistry]:
    """Its agent sends one heartbeat, at the beginning, and none afterwards."""
    made = SliceRegistry(node.folder, Policy(least_milli=50), lambda: START_NS)
    yield made
    made.close()


def together(node: Node, registry: SliceRegistry, *slices: Slice) -> list[list[int]]:
    """Returns the GPU time of each slice in each second. All of them always have work."""
    running = []
    for client, one in enumerate(slices):
        control_block = {
            "KERF_DIRECTORY": str(registry.folder(one.key)),
            "LD_PRELOAD": str(node.built / "enforcement" / "test" / "libkerf.so"),
        }
        running.append(
            node.bare("share", "saturate", "500000", str(SECONDS), KERF_FAKE_CUDA_CLIENT=str(client), **control_block)
        )
    return [numbers(program) for program in running]


def test_a_throttled_slice_keeps_its_remaining_share_and_the_new_slice_gets_the_rest(
    node: Node, registry: SliceRegistry
) -> None:
    victim, new = slice_("victim", 600), slice_("new", 900)
    registry.put(victim, Override(compute_milli=100))
    registry.put(new)
    kept, got = together(node, registry, victim, new)
    # What a second leaves unspent the next one may use, up to a tenth of a second's share.
    assert all(70_000_000 < ns <= 110_000_000 for ns in kept[1:])
    assert sum(kept[1:]) <= 101_000_000 * len(kept[1:])
    assert all(abs(ns - 900_000_000) < 20_000_000 for ns in got[1:])


def test_a_pause_that_ends_with_the_agents_heartbeat_takes_nothing_from_the_new_slice(
    node: Node, registry: SliceRegistry
) -> None:
    """After two seconds the paused slice may continue: with the operator's minimum share, from time that no slice was
    granted."""
    victim, new = slice_("victim", 600), slice_("new", 900)
    registry.put(victim, Override(paused=True))
    registry.put(new)
    kept, got = together(node, registry, victim, new)
    assert max(kept[:STALE_S]) < 1_000_000
    assert all(0 < ns <= 51_000_000 for ns in kept[STALE_S + 1 :])
    assert all(abs(ns - 900_000_000) < 20_000_000 for ns in got[1:])
