"""A quick look spares trials of whole plans, and changes no verdict."""

from __future__ import annotations

import random
from typing import Any

import pytest

from services.placement.preemption import quick_look, reservations
from services.placement.preemption.quick_look import QuickLook
from services.placement.preemption.reservations import Reservations
from services.placement.scheduling.trial import Trial
from shared.contracts.preemption import Plan
from shared.model.affinity import Affinity, LabelSelector, PodAffinity, PodAffinityTerm
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.harness.proposals import Proposals, high, low

SEEDS = range(25)


def _asks(rng: random.Random) -> dict[str, Any]:
    """Whole GPUs or a part of one, and some CPU, which may be what is lacking."""
    gpus = {"gpus": rng.choice((1, 1, 2))} if rng.random() < 0.6 else {"gpus": 0, "memory": f"{rng.choice((20, 40))}Gi"}
    return {**gpus, "requests": {"cpu": str(rng.choice((1, 2, 4)))}}


def _gang(name: str, size: int, least: int) -> dict[str, str]:
    return {"kerf.dev/gang": name, "kerf.dev/gang-size": str(size), "kerf.dev/gang-min": str(least)}


def _cluster(rng: random.Random) -> Proposals:
    """Nodes that are nearly full of pods, some of them in gangs that can spare a member."""
    placement = Placement(*(build.node(name, cpu="12") for name in "abc"))
    cluster = Proposals(placement.nodes(*"abc", gpus=3))
    placement.facts(*(build.node(name, cpu="12") for name in "abc"))
    pods = [low(f"low{number}", priority=rng.choice((0, 0, 1)), **_asks(rng)) for number in range(9)]
    pods += [low(f"g{number}", annotations=_gang("g", 3, rng.choice((2, 3)))) for number in range(3)]
    rng.shuffle(pods)
    placement.facts(*pods)
    bound = placement.binds()
    for pod in pods:
        if pod.metadata.uid in bound:
            cluster.bound[pod.metadata.name] = placement.bind(pod)
    return cluster


def _plan(rng: random.Random, cluster: Proposals) -> Plan:
    """One that may be good, lack victims or have some that are not needed."""
    size = rng.choice((1, 1, 2, 3))
    of: dict[str, Any] = {"annotations": _gang("h", size, size)} if size > 1 else {}
    if rng.random() < 0.2:
        of["labels"] = {"app": "high"}
        term = PodAffinityTerm(
            label_selector=LabelSelector(match_labels={"app": "high"}), topology_key="kubernetes.io/hostname"
        )
        of["affinity"] = Affinity(
            pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=(term,))
        )
    asks = _asks(rng)
    pods: list[Pod] = [high(f"high{number}", **asks, **of) for number in range(size)]
    cluster.placement.facts(*pods)
    nodes = [rng.choice("abc") for _ in pods]
    near = [name for node in nodes for name in cluster.on(node)]
    victims = rng.sample(near, k=min(len(near), rng.randint(1, 4 * size)))
    if rng.random() < 0.3:
        victims += rng.sample(sorted(cluster.bound), k=1)
    return cluster.plan(*dict.fromkeys(victims), to=tuple(pods), nodes=tuple(nodes))


def _verdict(cluster: Proposals, plan: Plan) -> str:
    return cluster.placement.core.preemption.reservations.refusal(plan, cluster.placement.now)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_verdict_is_the_same_as_without_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        cluster = _cluster(rng)
        plan = _plan(rng, cluster)
        found = _verdict(cluster, plan)
        with monkeypatch.context() as without:
            without.setattr(reservations, "look_at", lambda *_: None)
            assert _verdict(cluster, plan) == found


@pytest.mark.parametrize("seed", SEEDS)
def test_what_does_not_fit_at_a_quick_look_does_not_fit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked about any victims, in any order: nothing of one look remains for the next."""
    rng = random.Random(seed)
    cluster = _cluster(rng)
    plan = _plan(rng, cluster)
    known = cluster.placement.core.preemption.reservations
    if (quick := quick_look.look_at(plan, known._engine, ())) is None:
        return
    for _ in range(8):
        staying = {v.uid for v in rng.sample(plan.victims, k=rng.randint(1, len(plan.victims)))}
        fits = known._try_plan(plan, [v for v in plan.victims if v.uid not in staying]) is not None
        assert quick.might_fit_beside(staying) >= fits
        assert quick.might_fit_beside(staying) == quick.might_fit_beside(staying)


def _many(nodes: int, **of: Any) -> tuple[Proposals, Plan]:
    """A gang with a pod for each node, and a victim for each GPU."""
    names = [f"n{number}" for number in range(nodes)]
    cluster = Proposals(Placement().nodes(*names, gpus=4))
    pods = [low(f"low{number}") for number in range(4 * nodes)]
    cluster.placement.facts(*pods)
    cluster.bound = {pod.metadata.name: cluster.placement.bind(pod) for pod in pods}
    gang = [high(f"high{number}", gpus=4, annotations=_gang("h", nodes, nodes), **of) for number in range(nodes)]
    cluster.placement.facts(*gang)
    return cluster, cluster.plan(*cluster.bound, to=tuple(gang), nodes=tuple(names))


@pytest.mark.parametrize("nodes", [2, 6])
def test_a_plan_is_not_tried_once_for_each_of_its_victims(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, plan = _many(nodes)
    tried, made = [0, 0], Trial.__init__
    whole = Reservations._try_plan

    def trial(self: Trial, *args: Any) -> None:
        tried[0] += 1
        made(self, *args)

    def try_plan(self: Reservations, *args: Any) -> Any:
        tried[1] += 1
        return whole(self, *args)

    monkeypatch.setattr(Trial, "__init__", trial)
    monkeypatch.setattr(Reservations, "_try_plan", try_plan)
    assert _verdict(cluster, plan) == ""
    assert tried == [1, 0]


def test_a_beneficiary_that_other_pods_bear_on_is_not_looked_at_quickly() -> None:
    cluster, plan = _many(2)
    assert isinstance(quick_look.look_at(plan, cluster.placement.core.engine, ()), QuickLook)
    term = PodAffinityTerm(label_selector=LabelSelector(), topology_key="kubernetes.io/hostname")
    away = Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=(term,)))
    cluster, plan = _many(2, affinity=away)
    assert quick_look.look_at(plan, cluster.placement.core.engine, ()) is None
