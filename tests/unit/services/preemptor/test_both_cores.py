"""Runs placement and the preemptor for long in simulated time, with random pods.

No pod thrashes, none is stuck, and no eviction is wasted. The cluster asserts at each Binding and each eviction that
nothing is double-booked, and that budgets and priorities hold.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.contracts.commands import Answer, Evict
from shared.contracts.preemption import ENDS
from tests.support.harness.cluster import STEP_S, Cluster
from tests.support.harness.conditions import Conditions, Execute
from tests.support.harness.settled import until_settled

PROTECTION_S = 60.0
QUIET_S = 60.0
"""Longer than the preemptor waits before it plans again for pods without an option."""


class Arrival(msgspec.Struct, frozen=True):
    after_s: float
    priority: int
    gpus: int = 1
    members: int = 1
    least: int = 0
    """The minimum of a gang; 0: all."""
    runs_s: float = 1e9
    label: str = ""
    queue: str = ""
    slice_: tuple[int, int] | None = None
    uses_percent: int = 0
    one_rack: bool = False
    grace_s: int = 0
    ends_after: float = 1.0
    """How much of its grace period it uses."""


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        after_s=st.sampled_from((0.0, 0.5, 3.0, 20.0)),
        priority=st.integers(0, 3),
        gpus=st.integers(1, 2),
        members=st.sampled_from((1, 1, 1, 2, 3)),
        runs_s=st.sampled_from((5.0, 60.0, 1e9)),
        label=st.sampled_from(("", "", "a", "b")),
        grace_s=st.sampled_from((0, 0, 30, 400)),
        ends_after=st.sampled_from((0.1, 1.0)),
    ),
    min_size=1,
    max_size=24,
)


def drive(cluster: Cluster, arrivals: list[Arrival]) -> None:
    for number, one in enumerate(arrivals):
        for _ in range(round(one.after_s / STEP_S)):
            cluster.step()
        gang = f"g{number}" if one.members > 1 else ""
        for member in range(one.members):
            cluster.arrive(
                f"p{number}-{member}",
                priority=one.priority,
                gpus=one.gpus,
                gang=gang,
                size=one.members,
                least=one.least,
                runs_s=one.runs_s,
                label=one.label,
                queue=one.queue,
                slice_=one.slice_,
                uses_percent=one.uses_percent,
                one_rack=one.one_rack,
                grace_s=one.grace_s,
                ends_after_s=one.ends_after * one.grace_s,
            )


def judge(cluster: Cluster) -> None:
    """Checks the properties that hold once the cluster has settled."""
    assert cluster.placement.core.preemption.reservations == {}
    assert cluster.preemptor.core.executions == {}
    assert set(cluster.outcome.values()) == {
        o for o in cluster.outcome.values() if o == "executed" or o.startswith("abandoned: ")
    }
    lost: dict[str, set[str]] = defaultdict(set)
    for _, name, plan in cluster.api.evictions:
        lost[plan].add(name)
    for plan_id, names in lost.items():
        plan, outcome = cluster.plans[plan_id], cluster.outcome[plan_id]
        assert names <= {victim.name for victim in plan.victims}
        if outcome == "executed":
            assert names == {victim.name for victim in plan.victims if victim.action in ENDS}
            gained = {b.uid for b in plan.beneficiaries}
            assert gained <= {d.uid for _, record in cluster.placement.log for d in getattr(record, "decisions", ())}
        else:
            assert "cannot be evicted" in outcome or "is not pending any more" in outcome, (
                "no eviction without a beneficiary, however long the grace period"
            )
    served = Counter(
        b.uid
        for plan_id in lost
        for b in cluster.plans[plan_id].beneficiaries
        if "cannot be evicted" not in cluster.outcome[plan_id]
    )
    assert max(served.values(), default=1) == 1, "pods were evicted for a pod for which others were terminating"
    when = defaultdict(list)
    for at, name, _ in cluster.api.evictions:
        when[name].append(at)
    for times in when.values():
        assert all(again - at >= PROTECTION_S - 1e-6 for at, again in itertools.pairwise(times)), (
            "evicted again while it was protected"
        )
    assert cluster.helped() == []
    for gang, members in cluster.api.gangs().items():
        bound = sum(bool(pod.spec.node_name) for pod in members)
        least = int(members[0].metadata.annotations.get("kerf.dev/gang-min", len(members)))
        assert bound == 0 or bound >= least, f"{gang} is torn"


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(nodes=st.lists(st.integers(1, 4), min_size=1, max_size=3), arrivals=ARRIVALS, least=st.integers(0, 2))
def test_the_cluster_settles_and_no_eviction_is_wasted(nodes: list[int], arrivals: list[Arrival], least: int) -> None:
    cluster = Cluster(
        {f"n{i}": gpus for i, gpus in enumerate(nodes)}, least={"a": least, "b": 1}, protection_s=PROTECTION_S
    )
    drive(cluster, arrivals)
    until_settled(cluster, settled_s=QUIET_S, max_s=2 * 3_600)
    judge(cluster)


@pytest.mark.parametrize("seed", range(30))
def test_gangs_that_require_one_rack_are_placed_and_not_split(seed: int) -> None:
    """The cluster would see a split at each Binding."""
    rng = random.Random(seed)
    nodes = {f"n{i}": rng.randint(1, 3) for i in range(rng.randint(2, 5))}
    arrivals = [
        Arrival(
            after_s=rng.choice((0.0, 0.5, 3.0, 20.0)),
            priority=rng.randint(0, 3),
            gpus=rng.randint(1, 2),
            members=rng.choice((1, 2, 3)),
            runs_s=rng.choice((5.0, 60.0, 1e9)),
            label=rng.choice(("", "", "", "a")),
            one_rack=rng.random() < 0.8,
        )
        for _ in range(rng.randint(4, 20))
    ]
    cluster = Cluster(
        nodes, racks={name: rng.choice("xyz") for name in nodes}, least={"a": 1}, protection_s=PROTECTION_S
    )
    drive(cluster, arrivals)
    until_settled(cluster, settled_s=QUIET_S, max_s=2 * 3_600)
    judge(cluster)


QUEUES = """
queues:
- {name: a, guaranteed: {gpus: 2}, weight: 2}
- {name: b, guaranteed: {gpus: 1}}
- {name: p, weight: 1}
- {name: c, parent: p, guaranteed: {gpus: 1}, limit: {gpus: 3}}
- {name: d, parent: p, weight: 0}
"""


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    arrivals=ARRIVALS,
    queues=st.lists(st.sampled_from("abcd"), min_size=24, max_size=24),
)
def test_queues_reclaim_their_share_and_settle(nodes: list[int], arrivals: list[Arrival], queues: list[str]) -> None:
    cluster = Cluster(
        {f"n{i}": gpus for i, gpus in enumerate(nodes)},
        least={"a": 1, "b": 1},
        protection_s=PROTECTION_S,
        queues=QUEUES,
    )
    drive(cluster, [msgspec.structs.replace(one, queue=queue) for one, queue in zip(arrivals, queues, strict=False)])
    until_settled(cluster, settled_s=QUIET_S, max_s=2 * 3_600)
    judge(cluster)


USES = st.lists(st.sampled_from((0, 10, 30, 90)), min_size=24, max_size=24)
SLICES = st.lists(
    st.tuples(st.sampled_from((10, 20, 40, 60)), st.sampled_from((0, 20, 50, 100))), min_size=24, max_size=24
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=st.lists(st.integers(1, 2), min_size=1, max_size=2),
    arrivals=ARRIVALS,
    slices=SLICES,
    uses=USES,
    checkpoints=st.booleans(),
)
def test_slices_are_suspended_and_resumed_and_settle(
    nodes: list[int], arrivals: list[Arrival], slices: list[tuple[int, int]], uses: list[int], checkpoints: bool
) -> None:
    """The cluster would see a double booking at each Binding and each order to a node."""
    cluster = Cluster(
        {f"n{i}": gpus for i, gpus in enumerate(nodes)},
        protection_s=PROTECTION_S,
        checkpoints=checkpoints,
        shrinks=True,
    )
    drive(
        cluster,
        [
            msgspec.structs.replace(one, label="", gpus=1, slice_=slice_, uses_percent=used)
            for one, slice_, used in zip(arrivals, slices, uses, strict=False)
        ],
    )
    until_settled(cluster, settled_s=QUIET_S, max_s=2 * 3_600)
    judge(cluster)
    for state in cluster.placement.core.book.pods.values():
        held = cluster.placement.core.book.grants.get(state.grant_id)
        assert held is None or held.suspension == state.suspension == cluster.nodes.suspension.get(held.grant_id), (
            "all three agree"
        )


class ShrinkingBudgets(Conditions):
    """Budgets that shrink after a plan was made, before its evictions are requested."""

    def __init__(self, rng: random.Random, least: dict[str, int]) -> None:
        self._rng, self._calm = rng, least

    def begin_step(self) -> None:
        if self._rng.random() < 0.3:
            self.cluster.api.least = dict(self._calm)

    def evict(self, order: Evict, plan_id: str, execute: Execute) -> Answer | None:
        if self._rng.random() < 0.3:
            self.cluster.api.least = dict.fromkeys(self._calm, 1_000)
        return execute(order, plan_id)


def shrinking(rng: random.Random, nodes: dict[str, int], least: dict[str, int]) -> Cluster:
    return Cluster(nodes, least=least, protection_s=PROTECTION_S, conditions=ShrinkingBudgets(rng, least))


@pytest.mark.parametrize("gpus", [2, 4])
@pytest.mark.parametrize(
    ("queues", "limited", "first", "then"),
    [
        ("queues: [{name: b, limit: {gpus: 2}}]", "b", ("b", 2), ("b", 3)),
        (
            "queues: [{name: p, limit: {gpus: 2}}, {name: d, parent: p}, {name: c, parent: p, guaranteed: {gpus: 1}}]",
            "p",
            ("d", 2),
            ("c", 0),
        ),
    ],
    ids=["a limit", "a guarantee below a limit"],
)
def test_a_queue_at_its_limit_preempts_also_where_gpus_are_free(
    gpus: int, queues: str, limited: str, first: tuple[str, int], then: tuple[str, int]
) -> None:
    cluster = Cluster({f"n{number}": 1 for number in range(gpus)}, queues=queues)
    for number in range(first[1]):
        cluster.arrive(f"first-{number}", priority=0, gpus=1, queue=first[0])
    for _ in range(60):
        cluster.step()
    cluster.arrive("then", priority=then[1], gpus=1, queue=then[0])
    for _ in range(200):
        cluster.step()
    assert [name for _, name, _ in cluster.api.evictions] in (["first-0"], ["first-1"])
    tree = cluster.placement.core.fair.tree
    assert tree is not None
    bound = {s.pod.metadata.name for s in cluster.placement.core.book.pods.values() if s.seen_bound}
    assert (tree.queues[limited].used.gpu_milli, "then" in bound) == (2_000, True)


@pytest.mark.parametrize("gap_s", [0.0, 20.0])
def test_several_reclaims_at_once_take_no_queue_below_its_guarantee(gap_s: float) -> None:
    """x is guaranteed 8 and has 9. What the first plan takes of it still counts as used when the next is made."""
    queues = "queues: [{name: x, guaranteed: {gpus: 8}}, {name: y}, {name: q, guaranteed: {gpus: 8}}]"
    cluster = Cluster({f"n{number}": 1 for number in range(16)}, queues=queues)
    least = 16_000

    def run(seconds: float) -> None:
        nonlocal least
        for _ in range(round(seconds / STEP_S)):
            cluster.step()
            tree = cluster.placement.core.fair.tree
            assert tree is not None
            least = min(least, tree.queues["x"].used.gpu_milli or 16_000)

    for queue, count in (("y", 7), ("x", 9)):
        for number in range(count):
            cluster.arrive(f"{queue}{number}", priority=0, gpus=1, queue=queue)
        run(60)
    least = 16_000
    for number in range(8):
        cluster.arrive(f"q{number}", priority=0, gpus=1, queue="q")
        run(gap_s)
    run(200)
    tree = cluster.placement.core.fair.tree
    assert tree is not None
    assert (least, tree.queues["q"].used.gpu_milli) == (8_000, 8_000)
    assert len(cluster.api.evictions) <= 9


def test_no_pod_is_evicted_for_a_plan_that_another_victims_budget_cancels() -> None:
    """Victims of such a plan without a budget keep running."""
    spared = []
    for seed in range(12):
        rng = random.Random(seed)
        cluster = shrinking(rng, {"n0": 4, "n1": 4}, {"a": 0, "b": 1})
        drive(
            cluster,
            [
                Arrival(
                    after_s=rng.choice((0.0, 1.0, 10.0)),
                    priority=rng.randint(0, 3),
                    gpus=rng.choice((1, 1, 2, 4)),
                    members=rng.choice((1, 1, 2)),
                    runs_s=rng.choice((60.0, 1e9)),
                    label=rng.choice(("", "a", "b")),
                )
                for _ in range(30)
            ],
        )
        for _ in range(600):
            cluster.step()
        ended = {(plan_id, name) for _, name, plan_id in cluster.api.evictions}
        given_up = [
            cluster.plans[plan_id] for plan_id, outcome in cluster.outcome.items() if "cannot be evicted" in outcome
        ]
        free = [
            (plan.plan_id, victim.name)
            for plan in given_up
            for victim in plan.victims
            if not cluster.api.labels[victim.name]
        ]
        assert ended.isdisjoint(free)
        spared += free
    assert spared


@pytest.mark.parametrize("seed", [1, 2])
def test_a_busy_cluster(seed: int) -> None:
    """A hundred pods and gangs, more than fit at once."""
    rng = random.Random(seed)
    arrivals = [
        Arrival(
            after_s=rng.expovariate(1 / 15),
            priority=rng.choice((0, 0, 0, 1, 1, 2, 3)),
            gpus=rng.choice((1, 1, 2, 4)),
            members=rng.choice((1, 1, 1, 2, 4)),
            runs_s=rng.expovariate(1 / 400),
            label=rng.choice(("", "", "a", "b")),
        )
        for _ in range(100)
    ]
    cluster = Cluster({f"n{i}": 8 for i in range(4)}, least={"a": 2, "b": 4}, protection_s=PROTECTION_S)
    drive(cluster, arrivals)
    until_settled(cluster, settled_s=QUIET_S, max_s=3 * 3_600)
    judge(cluster)
    assert len(cluster.api.evictions) > 5
    assert max(Counter(name for _, name, _ in cluster.api.evictions).values()) < 10
