"""Several plans at the same time on one node: what each leaves to the others, and that all of them are carried out."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import questions
from shared.contracts.events import PreemptionAbandoned, PreemptionExecuted
from shared.contracts.preemption import Plan
from shared.contracts.queries import WhenQuery
from shared.model.affinity import Affinity, LabelSelector, PodAffinity, PodAffinityTerm
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.harness.proposals import Proposals, high, low

ORDERS = list(itertools.permutations(range(3)))


def cores(number: int) -> dict[str, Any]:
    return {"requests": {"cpu": str(number)}}


def empty_node(*, gpus: int = 3, cpu: str = "64") -> Proposals:
    placement = Placement(build.node("n", cpu=cpu))
    placement.send(m.InventorySeen(build.inventory("n", gpus=gpus)))
    return Proposals(placement)


def full_node(*pods: Pod, gpus: int = 3, cpu: str = "64") -> Proposals:
    """One node on which these run: by default a pod of one GPU on each."""
    cluster = empty_node(gpus=gpus, cpu=cpu)
    for pod in pods or [low(f"low{number}") for number in range(gpus)]:
        cluster.run(pod)
    return cluster


def reserved(cluster: Proposals, *pairs: tuple[str, Pod]) -> list[Plan]:
    """A plan each that evicts the pod of this name for that pod, all of which placement has reserved."""
    plans = [cluster.plan(name, to=(pod,), plan_id=f"for-{pod.metadata.name}") for name, pod in pairs]
    for plan in plans:
        answer = cluster.propose(plan)
        assert answer.ok, answer.reason
        assert list(answer.places) == [plan.beneficiaries[0].uid]
    return plans


def executed(cluster: Proposals) -> list[str]:
    assert cluster.placement.events(PreemptionAbandoned) == []
    return [event.plan.plan_id for event in cluster.placement.events(PreemptionExecuted)]


@pytest.mark.parametrize("order", ORDERS)
def test_each_is_done_when_its_own_victim_is_gone_in_whatever_order(order: tuple[int, ...]) -> None:
    cluster = full_node()
    pods = [high(f"high{number}") for number in range(3)]
    cluster.wait(*pods)
    plans = reserved(cluster, *((f"low{number}", pod) for number, pod in enumerate(pods)))
    for number in order:
        cluster.release(f"low{number}")
        assert executed(cluster)[-1] == plans[number].plan_id
        assert cluster.node_of(pods[number]) == "n"
    assert cluster.placement.core.book.overbooked() == []


@pytest.mark.parametrize("order", ORDERS)
def test_victims_make_room_on_a_node_whose_cpu_is_all_requested(order: tuple[int, ...]) -> None:
    """Each beneficiary needs what its victim has: so it fits whichever is done first."""
    cluster = full_node(*(low(f"low{number}", **cores(4)) for number in range(3)), cpu="12")
    pods = [high(f"high{number}", **cores(4)) for number in range(3)]
    cluster.wait(*pods)
    reserved(cluster, *((f"low{number}", pod) for number, pod in enumerate(pods)))
    for number in order:
        cluster.release(f"low{number}")
    assert len(executed(cluster)) == 3


def test_a_place_is_kept_beside_a_victim_that_has_more_than_the_place_needs() -> None:
    """The first is done while the victim of the second still has nearly all of the CPU, and the second's place is
    booked beside it."""
    cluster = full_node(low("light", **cores(1)), low("heavy", **cores(20)), gpus=2, cpu="21")
    first, second = high("first", **cores(1)), high("second", **cores(20))
    cluster.wait(first, second)
    reserved(cluster, ("light", first), ("heavy", second))
    cluster.release("light")
    cluster.release("heavy")
    assert executed(cluster) == ["for-first", "for-second"]


def test_room_that_another_plan_needs_is_left_to_it() -> None:
    """The first plan takes four more cores than its victim has, and none is left for the second, whose victim has
    fewer than its beneficiary needs."""
    cluster = full_node(low("low0", **cores(4)), low("low1", **cores(4)), gpus=2, cpu="12")
    first, second = high("first", **cores(8)), high("second", **cores(5))
    cluster.wait(first, second)
    reserved(cluster, ("low0", first))
    answer = cluster.propose(cluster.plan("low1", to=(second,), plan_id="for-second"))
    assert answer.reason == "the beneficiaries would not fit even without the victims"
    assert answer.places == {}


@pytest.mark.parametrize("gone", [(), ("a",)])
def test_two_plans_do_not_share_a_gpu(gone: tuple[str, ...]) -> None:
    """Also when a half of it is free for the second plan: the first, which waits for CPU, would find it full."""
    half = {"gpus": 0, "memory": "40Gi", "compute": 50}
    pods = low("a", **half, **cores(1)), low("b", **half, **cores(1)), low("whole", **cores(8))
    cluster = full_node(*pods, gpus=2, cpu="10")
    (of_whole,) = cluster.placement.core.book.grants[cluster.grant_id(pods[2])].grant.containers["c"].gpus
    states = {int(of_whole.uuid[-1]): "suspect"}  # so that both want the other one
    cluster.placement.send(m.InventorySeen(build.inventory("n", gpus=2, generation=2, states=states)))
    first, second = high("first", **half, **cores(9)), high("second", **half, **cores(1))
    cluster.wait(first, second)
    assert cluster.propose(cluster.plan("a", "whole", to=(first,), plan_id="for-first")).ok
    for name in gone:
        cluster.release(name)
    answer = cluster.propose(cluster.plan("b", to=(second,), plan_id="for-second"))
    assert answer.reason == "the beneficiaries would not fit even without the victims"


def test_a_gpu_that_another_plan_has_is_passed_over_where_there_is_another() -> None:
    """CPU is what both lack; the policy would pack the second beside the first."""
    quarter = {"memory": "20Gi", "compute": 25}
    lows = [low(f"low{number}", memory="60Gi", compute=60, **cores(8)) for number in range(2)]
    cluster = full_node(*lows, low("keep", memory="8Gi", compute=10, **cores(1)), gpus=2, cpu="17")
    pods = [high(name, **({"gpus": 0} | quarter | cores(8))) for name in ("first", "second")]
    cluster.wait(*pods)
    reserved(cluster, ("low0", pods[0]), ("low1", pods[1]))
    grants = [place.grant for record in cluster.records() for place in record.places.values()]
    assert len({grant.containers["c"].gpus[0].uuid for grant in grants if grant is not None}) == 2
    cluster.release("low1")
    cluster.release("low0")
    assert executed(cluster) == ["for-second", "for-first"]


@pytest.mark.parametrize("which", ["first", "second"])
def test_a_pod_that_has_to_be_near_another_has_no_plan_beside_it(which: str) -> None:
    """It could be near a pod that another plan has yet to place, or ends."""
    term = PodAffinityTerm(topology_key="kubernetes.io/hostname", label_selector=LabelSelector(match_labels={"a": "b"}))
    near = Affinity(pod_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=(term,)))
    cluster = full_node(low("low0"), low("low1"), low("other", labels={"a": "b"}))
    pods = {name: high(name, **({"affinity": near} if name == which else {})) for name in ("first", "second")}
    cluster.wait(*pods.values())
    assert cluster.propose(cluster.plan("low0", to=(pods["first"],), plan_id="for-first")).ok
    answer = cluster.propose(cluster.plan("low1", to=(pods["second"],), plan_id="for-second"))
    assert answer.reason == "another plan is in progress for n"


def test_when_a_pod_starts_does_not_depend_on_plans_beside_its_own() -> None:
    cluster = full_node(*(low(f"low{number}", **cores(4)) for number in range(3)), cpu="12")
    pods = [high(f"high{number}", **cores(4)) for number in range(3)]
    cluster.wait(*pods)
    now, core = 1_800_000_000.0, cluster.placement.core
    for number, grace_s in enumerate((10, 300, 600)):
        reserved(cluster, (f"low{number}", pods[number]))
        cluster.placement.facts(build.ending(cluster.bound[f"low{number}"], now + grace_s))
        answer = finish(questions.when_(core, WhenQuery(namespace="team", name="high0"), now))
        assert answer.when is not None
        assert answer.when.sentence == "in 10 s at the earliest, on n, when team/low0 has ended"


def test_no_pod_gets_what_several_plans_free() -> None:
    cluster = full_node()
    pods = [high(f"high{number}") for number in range(2)]
    cluster.wait(*pods)
    reserved(cluster, ("low0", pods[0]), ("low1", pods[1]))
    cluster.wait(rival := high("rival", priority=1000))
    cluster.release("low1")
    cluster.release("low0")
    assert cluster.node_of(rival) == ""
    assert [cluster.node_of(pod) for pod in pods] == ["n", "n"]


def test_plans_on_one_node_survive_their_leader() -> None:
    cluster = full_node()
    pods = [high(f"high{number}") for number in range(3)]
    cluster.wait(*pods)
    reserved(cluster, *((f"low{number}", pod) for number, pod in enumerate(pods)))
    objects = [build.node("n"), *cluster.bound.values(), *pods]
    records = tuple(cluster.placement.log)
    cluster.placement = Placement(*objects, term=cluster.placement.sequence + 1, records=records).nodes("n", gpus=3)
    for name in ("low2", "low0", "low1"):
        cluster.release(name)
    assert executed(cluster) == ["for-high2", "for-high0", "for-high1"]
    assert cluster.placement.core.book.overbooked() == []


def test_a_plan_that_does_more_than_evict_is_alone_on_its_nodes() -> None:
    cluster = full_node()
    pods = [high(f"high{number}", node_selector={"kubernetes.io/hostname": "n"}) for number in range(2)]
    cluster.wait(*pods)
    cluster.placement.nodes("m", gpus=1)
    plan = cluster.plan("low0", to=(pods[0],), plan_id="one")
    victims = tuple(msgspec.structs.replace(victim, action="move", to="m") for victim in plan.victims)
    answer = cluster.propose(msgspec.structs.replace(plan, victims=victims))
    assert (answer.ok, answer.places) == (True, {})
    second = cluster.propose(cluster.plan("low1", to=(pods[1],), plan_id="two"))
    assert second.reason == "another plan is in progress for n"


def test_which_plans_only_evict() -> None:
    cluster = full_node()
    plan = cluster.plan("low0")
    (victim,), (beneficiary,) = plan.victims, plan.beneficiaries
    assert plan.only_evicts
    for other in (
        {"turn": True},
        {"consolidates": True},
        {"victims": (msgspec.structs.replace(victim, action="throttle"),)},
        {"beneficiaries": (msgspec.structs.replace(beneficiary, resumes=True),)},
    ):
        assert not msgspec.structs.replace(plan, **other).only_evicts


class Offer(msgspec.Struct, frozen=True):
    """A running pod and a waiting one: whole GPUs or a half of one, and cores."""

    victim: tuple[int, int]
    beneficiary: tuple[int, int]

    @staticmethod
    def ask(gpus_and_cores: tuple[int, int]) -> dict[str, Any]:
        gpus, number = gpus_and_cores
        return ({"gpus": gpus} if gpus else {"memory": "40Gi", "compute": 50}) | cores(number)


SIZES = st.tuples(st.integers(0, 2), st.integers(1, 6))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    offers=st.lists(st.builds(Offer, victim=SIZES, beneficiary=SIZES), min_size=2, max_size=5),
    spare=st.integers(0, 3),
    order=st.randoms(use_true_random=False),
)
def test_all_plans_that_are_accepted_are_carried_out_in_any_order(
    offers: list[Offer], spare: int, order: random.Random
) -> None:
    """While victims go, plans are proposed and other pods come. No plan ends without a place for its pod: its own, or
    what another plan has freed beyond its need."""
    cpu = sum(offer.victim[1] for offer in offers) + spare
    cluster = empty_node(gpus=6, cpu=str(cpu))
    for number, offer in enumerate(offers):
        cluster.placement.facts(pod := low(f"low{number}", **offer.ask(offer.victim)))
        if cluster.node_of(pod):
            cluster.run(pod)
    proposals = [number for number in range(len(offers)) if f"low{number}" in cluster.bound]
    going: list[int] = []
    accepted: list[Pod] = []
    while proposals or going:
        match order.choice(["propose"] * bool(proposals) + ["release"] * bool(going) + ["arrive"]):
            case "propose":
                number = proposals.pop(order.randrange(len(proposals)))
                cluster.placement.facts(pod := high(f"high{number}", **offers[number].ask(offers[number].beneficiary)))
                answer = cluster.propose(cluster.plan(f"low{number}", to=(pod,), plan_id=f"for-{number}"))
                going += [number] if answer.ok else []
                accepted += [pod] if answer.ok else []
            case "release":
                cluster.release(f"low{going.pop(order.randrange(len(going)))}")
            case "arrive":
                cluster.placement.facts(low(f"other{len(cluster.placement.binds())}", **cores(1)))
    early = cluster.placement.events(PreemptionAbandoned)
    assert all("is not pending any more" in event.reason for event in early)
    assert {cluster.node_of(pod) for pod in accepted} <= {"n"}
    assert cluster.placement.core.book.overbooked() == []
