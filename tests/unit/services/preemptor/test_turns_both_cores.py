"""Placement and the preemptor let random pods take turns on GPUs and hosts in simulated time.

The harness asserts after each order that no GPU and no host has more than there is.
"""

from __future__ import annotations

import random

import pytest

from tests.support.harness.cluster import STEP_S, Cluster
from tests.support.harness.nodes import GPU_MIB

RULES = "turns: {level_bounds_gpu_s: [20, 100, 400], min_turn_s: 5, max_wait_s: 300}"
SLICES = ((80, 100), (80, 100), (40, 50))


def play(seed: int, *, any_gpu: bool) -> Cluster:
    """Creates pods for five minutes, and waits until nothing is suspended."""
    draw = random.Random(seed)
    cluster = Cluster({"n": 3, "m": 2}, queues=RULES, park_mib=5 * GPU_MIB, any_gpu=any_gpu, copied_mib_per_s=1e9,
                      copy_fixed_s=0.0)  # fmt: skip
    for number in range(24):
        gang = {"gang": f"g{number}", "size": 2} if draw.random() < 0.2 else {}
        for member in range(2 if gang else 1):
            runs_s = draw.choice((20.0, 100.0, 400.0))
            slice_ = draw.choice(SLICES)
            cluster.arrive(f"p{number}-{member}", priority=0, turns=True, slice_=slice_, runs_s=runs_s, **gang)
        for _ in range(draw.choice((0, 10, 40))):
            cluster.step()
    for _ in range(round(1_500 / STEP_S)):
        cluster.step()
    return cluster


def moved(cluster: Cluster) -> int:
    """How many moves were logged."""
    return sum(len(getattr(record, "amendments", ())) for _, record in cluster.placement.log)


@pytest.mark.parametrize("seed", range(3))
def test_all_pods_run_and_end_and_some_have_moved(seed: int) -> None:
    cluster = play(seed, any_gpu=True)
    assert cluster.api.suspensions, "nobody took a turn"
    assert moved(cluster) > 0
    assert not cluster.api.pending()
    assert not cluster.nodes.suspension


def test_where_no_node_can_do_it_nothing_moves() -> None:
    cluster = play(0, any_gpu=False)
    assert moved(cluster) == 0
    assert not cluster.nodes.suspension


@pytest.mark.parametrize(("park_mib", "migrated"), [(0, 1), (4 * GPU_MIB, 0)])
def test_what_no_turn_can_free_is_freed_by_a_migration(park_mib: int, migrated: int) -> None:
    """Each node has a free GPU, and a pod waits for two. A host with room takes the memory of the one that yields; a
    full one takes none, and a pod is migrated as far as the operator allows it."""
    cluster = Cluster({"n": 2, "m": 2}, queues=RULES, park_mib=park_mib, copied_mib_per_s=1e9, copy_fixed_s=0.0,
                      defragmentation_gpu_seconds_per_hour=10**6, reclaim_patience=0)  # fmt: skip
    for number, runs_s in enumerate((30.0, 1e9, 1e9, 30.0)):
        cluster.arrive(f"p{number}", priority=0, turns=True, slice_=(80, 100), runs_s=runs_s)
        cluster.step()
    for _ in range(round(60 / STEP_S)):
        cluster.step()
    cluster.arrive("large", priority=0, turns=True, gpus=2, runs_s=60.0)
    for _ in range(round(120 / STEP_S)):
        cluster.step()
    assert cluster.api.bound_at["large"]
    assert len(cluster.api.evictions) == migrated
    assert bool(cluster.api.suspensions) is not bool(migrated)
