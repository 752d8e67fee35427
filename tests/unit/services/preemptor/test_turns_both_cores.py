"""Placement and the preemptor let random pods take turns on GPUs and hosts in simulated time.

The harness asserts after each order that no GPU and no host has more than there is.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from services.placement.preemption.reservations import Reservations
from shared.contracts.preemption import Plan
from shared.model import names
from shared.queues.turns import TurnPolicy, WatchdogLoad
from tests.support import build
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


def test_a_gang_that_was_suspended_as_a_whole_resumes_as_a_whole_though_its_queue_has_turns_no_more() -> None:
    """Its first pod would hold a GPU and wait for the other one, whose GPU a job has that yields no more."""
    rules = RULES.replace("300", "3000")
    allowed, never = (f"{rules}\nqueues: [{{name: a, turns: {turns}}}]" for turns in ("allowed", "never"))
    cluster = Cluster({"n": 2}, queues=allowed, copied_mib_per_s=1e9, copy_fixed_s=0.0)
    for number in range(2):
        cluster.arrive(f"g-{number}", gang="g", size=2, priority=0, queue="a", slice_=(80, 100))
    run(cluster, 60)
    cluster.arrive("short", priority=0, queue="a", slice_=(80, 100), runs_s=40.0)
    cluster.arrive("long", priority=0, queue="a", slice_=(80, 100), runs_s=200.0)
    run(cluster, 15)
    assert suspended(cluster) == {"g-0", "g-1"}
    cluster.facts(build.queues(never))
    run(cluster, 60)
    assert "short" not in names_of(cluster)
    assert suspended(cluster) == {"g-0", "g-1"}
    run(cluster, 200)
    assert names_of(cluster) == {"g-0", "g-1"}
    assert suspended(cluster) == set()


def run(cluster: Cluster, seconds: float) -> None:
    for _ in range(round(seconds / STEP_S)):
        cluster.step()


def names_of(cluster: Cluster) -> set[str]:
    return {pod.metadata.name for pod in cluster.api.live.values()}


def suspended(cluster: Cluster) -> set[str]:
    live = cluster.api.live.values()
    return {pod.metadata.name for pod in live if names.ANNOTATION_SUSPENDED in pod.metadata.annotations}


def test_a_plan_for_a_gang_looks_up_what_watchdogs_load_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a look at every grant, and such a plan has many victims."""
    looked: list[int] = []
    found = TurnPolicy.watchdog_loads

    def counted(self: TurnPolicy) -> dict[tuple[str, str], WatchdogLoad]:
        looked.append(1)
        return found(self)

    cluster = Cluster({"n": 4}, queues=RULES, copied_mib_per_s=1e9, copy_fixed_s=0.0)
    for number in range(4):
        cluster.arrive(f"first-{number}", priority=0, turns=True, slice_=(80, 100))
    run(cluster, 60)
    for number in range(4):
        cluster.arrive(f"second-{number}", gang="second", size=4, priority=0, turns=True, slice_=(80, 100))
    checked = Reservations.reserve
    most = 0

    def reserve(self: Reservations, plan: Plan, term: int, now: float) -> Any:
        nonlocal most
        looked.clear()
        answer = checked(self, plan, term, now)
        most = max(most, len(looked))
        return answer

    monkeypatch.setattr(TurnPolicy, "watchdog_loads", counted)
    monkeypatch.setattr(Reservations, "reserve", reserve)
    run(cluster, 30)
    assert suspended(cluster) == {f"first-{number}" for number in range(4)}
    assert most == 1
