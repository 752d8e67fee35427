"""Runs as in `test_both_cores`, with leaders, agents, feeds and nodes that fail.

The cluster settles, no pod stays suspended, and no protected pod is evicted. The cluster asserts that nothing is
double-booked.
"""

from __future__ import annotations

import itertools
import random

import pytest

from tests.support.harness.cluster import STEP_S, Cluster
from tests.support.harness.faults import FAULTS, Faults
from tests.support.harness.settled import until_settled

PROTECTION_S, DEADLINE_S = 60.0, 120
GRACES_S = (0, 0, 20, 200)
ENDS_AFTER = (0.1, 1.0, 1.0, 2.0)
"""How much of its grace period a pod uses; some pods are stuck for as long again."""
QUEUES = """
queues:
- {name: a, guaranteed: {gpus: 2}, weight: 2}
- {name: b, weight: 3, limit: {gpus: 3}}
- {name: p, weight: 1}
- {name: c, parent: p, guaranteed: {gpus: 1}}
- {name: d, parent: p, weight: 0}
"""


def drawn(seed: int) -> tuple[Cluster, Faults]:
    rng = random.Random(seed)
    nodes = {f"n{i}": rng.choice((1, 2, 4)) for i in range(rng.randint(1, 4))}
    faults = Faults(rng, frozenset(rng.sample(FAULTS, rng.randint(1, len(FAULTS)))))
    queues = rng.choice((None, QUEUES))
    cluster = Cluster(
        nodes,
        conditions=faults,
        least={"a": rng.randint(0, 2), "b": 1},
        protection_s=PROTECTION_S,
        queues=queues,
        checkpoints=rng.random() < 0.5,
        gives_back_s=rng.choice((0.5, 3.0, 10.0)),
        deadline_s=DEADLINE_S,
    )
    for number in range(rng.randint(5, 30)):
        for _ in range(rng.choice((0, 1, 6, 20, 40))):
            cluster.step(STEP_S)
        members, priority, runs_s = (
            rng.choice((1, 1, 1, 2, 3)),
            rng.randint(0, 3),
            rng.choice((5.0, 60.0, 300.0, 1e9)),
        )
        slice_ = (rng.choice((10, 20, 40, 60)), rng.choice((0, 20, 50, 100))) if rng.random() < 0.6 else None
        grace_s, ends_after = rng.choice(GRACES_S), rng.choice(ENDS_AFTER)
        gpus, label, queue = (
            rng.choice((1, 1, 2)),
            rng.choice(("", "", "a", "b")),
            rng.choice("abcd") if queues else "",
        )
        for member in range(members):
            cluster.arrive(
                f"p{number}-{member}",
                priority=priority,
                gpus=1 if slice_ else gpus,
                gang=f"g{number}" if members > 1 else "",
                size=members,
                runs_s=runs_s,
                label=label,
                queue=queue,
                slice_=slice_,
                grace_s=grace_s,
                ends_after_s=ends_after * grace_s,
            )
        faults.inject()
    return cluster, faults


def fragmented(seed: int) -> Cluster:
    """Small pods, some of which end soon, and then large ones that fit only after migrations."""
    rng = random.Random(seed)
    nodes = {f"n{i}": rng.choice((2, 3, 4)) for i in range(rng.randint(2, 4))}
    faults = Faults(rng, frozenset(rng.sample(FAULTS, rng.randint(1, len(FAULTS)))))
    cluster = Cluster(
        nodes,
        conditions=faults,
        least={"a": 1},
        protection_s=PROTECTION_S,
        gives_back_s=rng.choice((0.5, 3.0, 10.0)),
        deadline_s=DEADLINE_S,
        defragmentation_gpu_seconds_per_hour=10**6,
        reclaim_patience=rng.choice((0, 1)),
    )
    for number in range(sum(nodes.values())):
        slice_ = rng.choice((None, (30, 0), (20, 50)))
        grace_s = rng.choice(GRACES_S)
        cluster.arrive(
            f"s{number}", priority=0, runs_s=rng.choice((5.0, 1e9)), slice_=slice_, label=rng.choice(("", "", "a")),
            grace_s=grace_s, ends_after_s=rng.choice(ENDS_AFTER) * grace_s,
        )  # fmt: skip
    for _ in range(20):
        cluster.step(STEP_S)
    for number in range(rng.randint(1, 5)):
        members = rng.choice((1, 1, 2))
        for member in range(members):
            cluster.arrive(
                f"p{number}-{member}",
                priority=rng.choice((0, 0, 1)),
                gpus=rng.choice((2, 2, 3)),
                gang=f"g{number}" if members > 1 else "",
                size=members,
            )
        for _ in range(rng.choice((0, 1, 2, 6, 20))):
            cluster.step(STEP_S)
            if rng.random() < 0.3:
                faults.inject()
    return cluster


@pytest.mark.parametrize("seed", [*range(18), 280, 289, 3246, 3261])
def test_the_cluster_settles_whatever_fails(seed: int) -> None:
    cluster, _ = drawn(seed)
    judge(cluster)


@pytest.mark.parametrize("seed", range(20))
def test_the_cluster_settles_with_migrations_whatever_fails(seed: int) -> None:
    """A migrated pod has a booked place at its eviction, whoever leads; the cluster asserts it."""
    judge(fragmented(seed))


def judge(cluster: Cluster) -> None:
    until_settled(cluster, settled_s=DEADLINE_S + max(GRACES_S) + 20.0, max_s=3 * 3_600)
    assert cluster.placement.core.preemption.reservations == {}
    assert cluster.preemptor.core.executions == {}
    assert cluster.placement.core.book.grants.keys() == cluster.nodes.grants.keys()
    for state in cluster.placement.core.book.pods.values():
        held = cluster.placement.core.book.grants.get(state.grant_id)
        assert held is None or held.suspension == state.suspension == cluster.nodes.suspension.get(held.grant_id), (
            "all three agree"
        )
    for times in cluster.api.evicted_at().values():
        assert all(again - at >= PROTECTION_S - 1e-6 for at, again in itertools.pairwise(times))
