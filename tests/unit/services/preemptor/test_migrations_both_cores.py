"""Runs placement and the preemptor in simulated time with migrations among equals enabled.

The cluster asserts at each eviction that no pod of higher priority is migrated, and none without a booked place.
"""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.support.harness.cluster import STEP_S, Cluster
from tests.support.harness.settled import until_settled
from tests.unit.services.preemptor.test_both_cores import PROTECTION_S, QUEUES, QUIET_S, Arrival, drive, judge

HOUR_S = 3_600.0
BUDGETS = st.sampled_from((60, 600, 10**6))
"""What migrations may disturb in an hour, in GPU-seconds."""
PATIENCE = st.sampled_from((0.0, 1.0))


def judge_moves(cluster: Cluster, most_gpu_seconds: int) -> int:
    """Checks the properties of migrations in addition to those of evictions. Returns how many there were."""
    moves = [
        (at, name, cluster.plans[plan]) for at, name, plan in cluster.api.evictions if cluster.plans[plan].consolidates
    ]
    began: dict[str, float] = {}
    for at, name, plan in moves:
        began.setdefault(plan.plan_id, at)
        gained = [any(bound >= at for bound in cluster.api.bound_at[b.name]) for b in plan.beneficiaries]
        assert all(gained), "a migration without a beneficiary"  # free capacity elsewhere may come first
        again = next((bound for bound in cluster.api.bound_at[name] if bound >= at), None)
        assert again is not None, f"{name} has lost its place"
        assert again - at <= 2 * STEP_S + cluster.nodes.gives_back_s, f"{name} had to wait for a place that was kept"
    for plan_id, at in began.items():
        within = [other for other, then in began.items() if at - HOUR_S < then <= at]
        assert plan_id in within
        assert sum(cluster.plans[other].price_gpu_seconds for other in within) <= most_gpu_seconds
    return len(moves)


SMALL = st.lists(
    st.builds(
        Arrival,
        after_s=st.just(0.0),
        priority=st.sampled_from((0, 0, 1)),
        runs_s=st.sampled_from((5.0, 5.0, 60.0, 1e9)),
        slice_=st.sampled_from((None, None, (30, 0), (40, 0), (20, 50), (30, 50))),
    ),
    min_size=4,
    max_size=14,
)
ELASTIC = st.lists(
    st.builds(
        Arrival,
        after_s=st.just(0.0),
        priority=st.just(0),
        members=st.sampled_from((2, 3)),
        least=st.just(1),
        runs_s=st.sampled_from((60.0, 1e9)),
    ),
    max_size=2,
)
"""Gangs that can spare members."""
LARGE = st.lists(
    st.builds(
        Arrival,
        after_s=st.sampled_from((0.0, 3.0, 20.0)),
        priority=st.sampled_from((0, 0, 1)),
        gpus=st.integers(1, 3),
        members=st.sampled_from((1, 1, 2)),
        runs_s=st.sampled_from((20.0, 1e9)),
    ),
    min_size=1,
    max_size=5,
)
"""Pods that arrive after some of the small ones have ended, when the nodes are fragmented."""
NODES = st.lists(st.integers(2, 4), min_size=1, max_size=4)


def torn(small: list[Arrival], large: list[Arrival]) -> list[Arrival]:
    return [*small, msgspec.structs.replace(large[0], after_s=8.0), *large[1:]]


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(nodes=NODES, small=SMALL, elastic=ELASTIC, large=LARGE, most=BUDGETS, patience=PATIENCE)
def test_migrated_pods_and_their_beneficiaries_are_placed(
    nodes: list[int], small: list[Arrival], elastic: list[Arrival], large: list[Arrival], most: int, patience: float
) -> None:
    """Migrates whole GPUs and slices (also to other GPUs of their node) and gangs, besides evictions and
    suspensions."""
    cluster = Cluster(
        {f"n{i}": gpus for i, gpus in enumerate(nodes)},
        protection_s=PROTECTION_S,
        defragmentation_gpu_seconds_per_hour=most,
        reclaim_patience=patience,
    )
    drive(cluster, torn([*small[: len(small) // 2], *elastic, *small[len(small) // 2 :]], large))
    until_settled(cluster, settled_s=QUIET_S, max_s=2 * HOUR_S)
    judge(cluster)
    event("moves" if judge_moves(cluster, most) else "no moves")


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=NODES,
    small=SMALL,
    large=LARGE,
    queues=st.lists(st.sampled_from("abcd"), min_size=24, max_size=24),
    labels=st.lists(st.sampled_from(("", "", "a", "b")), min_size=24, max_size=24),
)
def test_migrations_respect_queues_and_budgets(
    nodes: list[int], small: list[Arrival], large: list[Arrival], queues: list[str], labels: list[str]
) -> None:
    """A budget that changes during a plan may cancel it.

    Pods that were migrated by then have their places.
    """
    cluster = Cluster(
        {f"n{i}": gpus for i, gpus in enumerate(nodes)},
        least={"a": 1, "b": 1},
        protection_s=PROTECTION_S,
        queues=QUEUES,
        defragmentation_gpu_seconds_per_hour=10**6,
        reclaim_patience=0,
    )
    arrivals = [
        msgspec.structs.replace(one, queue=queue, label=label)
        for one, queue, label in zip(torn(small, large), queues, labels, strict=False)
    ]
    drive(cluster, arrivals)
    until_settled(cluster, settled_s=QUIET_S, max_s=2 * HOUR_S)
    judge(cluster)
    moved = [(at, name) for at, name, plan in cluster.api.evictions if cluster.plans[plan].consolidates]
    event("moves" if moved else "no moves")
    assert all(any(bound >= at for bound in cluster.api.bound_at[name]) for at, name in moved)


@pytest.mark.parametrize("patience", [0.0, 1.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fragmented_cluster_is_consolidated(seed: int, patience: float) -> None:
    """Small pods fill all nodes, and half of them end.

    Then large pods and a gang fit only after migrations.

    No pod is migrated in vain, or twice where once is enough.
    """
    rng = random.Random(seed)
    small = [Arrival(after_s=0.0, priority=0, runs_s=rng.choice((30.0, 1e9))) for _ in range(32)]
    large = [Arrival(after_s=40.0, priority=0, gpus=4, members=2), Arrival(after_s=5.0, priority=0, gpus=4)]
    cluster = Cluster(
        {f"n{i}": 4 for i in range(8)},
        protection_s=PROTECTION_S,
        defragmentation_gpu_seconds_per_hour=10**6,
        reclaim_patience=patience,
    )
    drive(cluster, [*small, *large])
    until_settled(cluster, settled_s=QUIET_S, max_s=3 * HOUR_S)
    judge(cluster)
    assert judge_moves(cluster, 10**6) > 0
    assert cluster.api.pending() == []
    assert max(Counter(name for _, name, _ in cluster.api.evictions).values()) == 1
