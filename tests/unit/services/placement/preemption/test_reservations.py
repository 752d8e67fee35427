"""Reservations.

What is refused, what is booked, which pod gets freed capacity, and what survives a leader.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.preemption import reservations
from services.placement.queries import questions
from shared.contracts.events import PreemptionAbandoned, PreemptionExecuted, PreemptionReserved
from shared.contracts.facts import Gone
from shared.contracts.log import DecisionBatch, ReservationRecord
from shared.contracts.preemption import Beneficiary, Plan, Reserved, Victim
from shared.contracts.queries import WhyQuery
from shared.model.life import STUCK_S
from shared.model.objects import Pod, Taint
from tests.support import build
from tests.support.leader import Leader, only

DEADLINE_S = 60


def low(name: str, **rest: Any) -> Pod:
    return build.gpu_pod(name, **({"gpus": 1} | rest))


def high(name: str = "high", **rest: Any) -> Pod:
    return build.gpu_pod(name, **({"gpus": 1, "priority": 100} | rest))


class World:
    """Nodes of two GPUs, full of pods without priority."""

    def __init__(self, *nodes: str) -> None:
        self.leader = Leader().nodes(*(nodes or ("n",)), gpus=2)
        self.bound: dict[str, Pod] = {}
        for number in range(2 * len(nodes or ("n",))):
            self.run(low(f"low{number}"))

    def run(self, pod: Pod) -> Pod:
        self.leader.facts(pod)
        seen = self.bound[pod.metadata.name] = self.leader.bind(pod)
        return seen

    def on(self, node: str) -> list[str]:
        return sorted(name for name, pod in self.bound.items() if pod.spec.node_name == node)

    def waits(self, *pods: Pod) -> None:
        self.leader.facts(*pods)
        assert not {p.metadata.uid for p in pods} & self.leader.binds().keys()

    def plan(self, *victims: str, to: tuple[Pod, ...] = (), plan_id: str = "plan", nodes: tuple[str, ...] = ()) -> Plan:
        wanted = to or (high(),)
        state_of = self.leader.core.book.pods
        return Plan(
            plan_id=plan_id,
            deadline_s=DEADLINE_S,
            beneficiaries=tuple(
                Beneficiary(uid=p.metadata.uid, namespace="team", name=p.metadata.name, node=node)
                for p, node in zip(wanted, nodes or [self.bound[v].spec.node_name for v in victims], strict=False)
            ),
            victims=tuple(
                Victim(
                    uid=self.bound[v].metadata.uid,
                    namespace="team",
                    name=v,
                    grant_id=state_of[self.bound[v].metadata.uid].grant_id,
                )
                for v in victims
            ),
        )

    def ask(self, plan: Plan) -> Reserved:
        return only(self.leader.send(m.ReserveAsked(plan)), m.AnswerPlan)[-1].answer

    def gives_back(self, name: str) -> None:
        """The pod was evicted and is gone, and its node has confirmed that."""
        pod = self.bound.pop(name)
        grant_id = self.leader.core.book.pods[pod.metadata.uid].grant_id
        self.leader.send(m.FactsSeen((Gone(object=pod),)))
        self.leader.send(m.ReleaseSeen(pod.spec.node_name, grant_id))

    def records(self) -> list[ReservationRecord]:
        return [r for _, record in self.leader.log if isinstance(record, DecisionBatch) for r in record.reservations]


def test_capacity_of_a_victim_goes_only_to_the_beneficiary() -> None:
    """Other pods of any size and priority arrive before and after the victim ends."""
    world = World()
    world.waits(wants := high())
    assert world.ask(world.plan("low0")).ok
    world.waits(rival := high("rival", priority=1000))
    world.gives_back("low0")
    assert world.leader.binds()[wants.metadata.uid].node == "n"
    assert rival.metadata.uid not in world.leader.binds()
    assert [type(e) for e in (*world.leader.events(PreemptionReserved), *world.leader.events(PreemptionExecuted))] == [
        PreemptionReserved,
        PreemptionExecuted,
    ]
    assert world.leader.core.book.overbooked() == []


def test_a_reservation_is_logged_before_it_may_be_executed() -> None:
    world = World()
    world.waits(high())
    world.leader.answer = False
    world.leader.now += 1
    said = world.leader.send(m.ReserveAsked(world.plan("low0")))
    record = only(said, m.Append)[0].record
    assert isinstance(record, DecisionBatch)
    assert [r.plan.plan_id for r in record.reservations] == ["plan"]
    assert only(said, m.AnswerPlan) == []
    assert only(world.leader.send(m.Appended(900)), m.AnswerPlan)[0].answer.ok


def test_the_end_of_a_reservation_is_logged_after_its_decisions() -> None:
    world = World()
    world.waits(wants := high())
    world.ask(world.plan("low0"))
    world.gives_back("low0")
    told = [
        (uid == wants.metadata.uid, over)
        for _, record in world.leader.log
        if isinstance(record, DecisionBatch)
        for uid, over in [*((d.uid, None) for d in record.decisions), *(("", r.over) for r in record.reservations)]
        if uid in ("", wants.metadata.uid)
    ]
    assert told == [(False, False), (True, None), (False, True)]


def test_a_repeated_request_gets_the_same_answer() -> None:
    world = World()
    world.waits(high())
    plan = world.plan("low0")
    assert world.ask(plan) == world.ask(plan) == Reserved(plan_id="plan", ok=True)
    assert len(world.records()) == 1


def test_a_plan_waits_until_all_victims_have_released() -> None:
    world = World()
    world.waits(wants := high(gpus=2))
    assert world.ask(world.plan("low0", "low1", to=(wants,))).ok
    world.gives_back("low0")
    world.waits(wants, small := high("small"))
    world.gives_back("low1")
    assert wants.metadata.uid in world.leader.binds()
    assert small.metadata.uid not in world.leader.binds()


def refused(world: World, plan: Plan) -> str:
    before = world.leader.core.book.digest()
    answer = world.ask(plan)
    assert not answer.ok
    assert world.leader.core.book.digest() == before
    assert world.records() == []
    return answer.reason


def test_a_pod_of_equal_priority_is_not_preempted() -> None:
    world = World()
    world.waits(equal := high(priority=0))
    assert "of no lower priority" in refused(world, world.plan("low0", to=(equal,)))


def test_a_plan_with_an_unnecessary_victim_is_refused() -> None:
    world = World()
    world.waits(wants := high())
    assert "would fit without preempting team/low" in refused(world, world.plan("low0", "low1", to=(wants,)))


def test_a_plan_that_does_not_free_enough_is_refused() -> None:
    world = World()
    world.waits(wants := high(gpus=2))
    assert "would not fit even without the victims" in refused(world, world.plan("low0", to=(wants,)))


def test_a_plan_is_refused_if_its_victim_has_another_grant_by_now() -> None:
    world = World()
    world.waits(high())
    plan = world.plan("low0")
    victims = (msgspec.structs.replace(plan.victims[0], grant_id="another"),)
    assert "does not have that grant any more" in refused(world, msgspec.structs.replace(plan, victims=victims))
    world.gives_back("low0")
    assert "is not pending" in refused(World(), plan)


def test_a_plan_for_a_pod_that_never_preempts_is_refused() -> None:
    world = World()
    world.waits(meek := high(preemption_policy="Never"))
    assert "Never" in refused(world, world.plan("low0", to=(meek,)))


def test_there_is_one_plan_per_node_and_beneficiary() -> None:
    world = World("a", "b")
    first, second = high("h1"), high("h2")
    world.waits(first, second)
    on_a, on_b = world.on("a"), world.on("b")
    assert world.ask(world.plan(on_a[0], to=(first,))).ok
    assert "another plan is in progress for a" in world.ask(world.plan(on_a[1], to=(second,), plan_id="two")).reason
    assert "another plan" in world.ask(world.plan(on_b[0], to=(first,), plan_id="three")).reason
    assert world.ask(world.plan(on_b[0], to=(second,), plan_id="four")).ok


def test_a_deadline_releases_the_reservation() -> None:
    world = World()
    world.waits(high())
    world.ask(world.plan("low0"))
    world.leader.now += DEADLINE_S - 10
    world.leader.send(m.BeatSeen(("n",)))
    world.leader.tick(11)
    assert "not all of its victims were gone after 61 s" in world.leader.events(PreemptionAbandoned)[0].reason
    assert world.records()[-1].over
    world.gives_back("low0")
    rival = high("rival", priority=1000)
    world.leader.facts(rival)
    assert rival.metadata.uid in {**world.leader.binds()} or world.leader.core.book.overbooked() == []


def deleted(world: World, name: str, grace_s: int) -> None:
    pod = world.bound[name]
    meta = msgspec.structs.replace(
        pod.metadata,
        deletion_timestamp="2030-01-01T00:00:00Z",
        deletion_grace_period_seconds=grace_s,
        resource_version=build.next_version(),
    )
    world.leader.facts(msgspec.structs.replace(pod, metadata=meta))


def passes(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.leader.send(m.BeatSeen(("n",)))
        world.leader.tick(1)


def test_a_plan_is_kept_while_all_victims_are_within_their_grace_periods() -> None:
    """One of them was deleted with a longer grace period than its own."""
    world = World()
    world.waits(wants := high(gpus=2))
    assert world.ask(world.plan("low0", "low1", to=(wants,), nodes=("n",))).ok
    world.gives_back("low0")
    passes(world, 50)
    deleted(world, "low1", grace_s=200)
    passes(world, 199)
    assert world.leader.events(PreemptionAbandoned) == []
    world.gives_back("low1")
    assert world.leader.binds()[wants.metadata.uid].node == "n"


def test_a_victim_that_exceeds_its_grace_period_is_waited_for_no_longer() -> None:
    world = World()
    world.waits(high())
    world.ask(world.plan("low0"))
    deleted(world, "low0", grace_s=100)
    passes(world, 100 + int(STUCK_S))
    assert world.leader.events(PreemptionAbandoned) == []
    passes(world, 2)
    assert "not all of its victims were gone" in world.leader.events(PreemptionAbandoned)[0].reason


def test_a_plan_is_cancelled_at_its_deadline_if_a_victim_is_not_terminating() -> None:
    world = World()
    world.waits(wants := high(gpus=2))
    assert world.ask(world.plan("low0", "low1", to=(wants,), nodes=("n",))).ok
    deleted(world, "low0", grace_s=200)
    passes(world, DEADLINE_S + 1)
    assert len(world.leader.events(PreemptionAbandoned)) == 1


def test_capacity_freed_by_a_cancelled_plan_goes_to_its_beneficiary_if_it_fits() -> None:
    world = World()
    world.waits(wants := high(gpus=2))
    assert world.ask(world.plan("low0", "low1", to=(wants,), nodes=("n",))).ok
    world.waits(low("rival", gpus=2))
    world.leader.send(m.AbandonAsked("plan", "a disruption budget says no"))
    world.gives_back("low0")
    world.gives_back("low1")
    assert world.leader.binds().keys() & {wants.metadata.uid, "uid-team-rival"} == {wants.metadata.uid}


def test_capacity_freed_by_a_cancelled_plan_is_available_at_once() -> None:
    world = World()
    world.waits(wants := high(gpus=2))
    assert world.ask(world.plan("low0", "low1", to=(wants,), nodes=("n",))).ok
    world.gives_back("low0")
    world.waits(rival := high("rival", priority=1000))
    world.leader.send(m.AbandonAsked("plan", "a disruption budget says no"))
    assert world.leader.binds()[rival.metadata.uid].node == "n"


def test_a_reservation_ends_with_its_beneficiary() -> None:
    world = World()
    world.waits(wants := high())
    world.ask(world.plan("low0", to=(wants,)))
    before = world.leader.core.book.digest()
    world.leader.send(m.FactsSeen((Gone(object=wants),)))
    assert "is not pending any more" in world.leader.events(PreemptionAbandoned)[0].reason
    assert not any(key.startswith("grant/reserved/") for key in world.leader.core.book.digest())
    assert any(key.startswith("grant/reserved/") for key in before)


def test_the_preemptor_may_cancel_a_plan() -> None:
    world = World()
    world.waits(high())
    world.ask(world.plan("low0"))
    answer = only(world.leader.send(m.AbandonAsked("plan", "a disruption budget says no")), m.AnswerPlan)[0].answer
    assert answer.ok
    assert world.leader.events(PreemptionAbandoned)[0].reason == "a disruption budget says no"


def gang(count: int) -> list[Pod]:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": str(count)}
    return [high(f"g{i}", annotations=notes) for i in range(count)]


def test_a_gang_gets_all_its_places_at_once_or_none() -> None:
    world = World("a", "b")
    members = gang(3)
    world.waits(*members)
    victims = [*world.on("a"), world.on("b")[0]]
    assert "needs 3 places at once" in world.ask(world.plan(*victims[:2], to=tuple(members[:2]), plan_id="two")).reason
    assert world.ask(world.plan(*victims, to=tuple(members))).ok
    for name in victims[:2]:
        world.gives_back(name)
    assert not {p.metadata.uid for p in members} & world.leader.binds().keys()
    world.gives_back(victims[2])
    assert {world.leader.binds()[p.metadata.uid].node for p in members} == {"a", "b"}
    batches = [
        {d.name for d in record.decisions} for _, record in world.leader.log if isinstance(record, DecisionBatch)
    ]
    assert {"g0", "g1", "g2"} in batches


def test_a_gang_is_reserved_in_one_rack_and_in_the_rack_that_it_has_begun_in() -> None:
    world = World("a", "b", "c")
    for node, rack in (("a", "x"), ("b", "y")):
        world.leader.facts(build.node(node, labels={"topology.kubernetes.io/rack": rack}))
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2", "kerf.dev/gang-topology": "required=rack"}
    first, second, third = (high(f"g{i}", annotations=notes) for i in range(3))
    world.waits(first, second)
    (a0, a1), (b0, _), (c0, _) = (world.on(node) for node in "abc")
    assert (
        "must be in one topology.kubernetes.io/rack"
        in world.ask(world.plan(a0, b0, to=(first, second), plan_id="split")).reason
    )
    assert (
        "must be in one topology.kubernetes.io/rack"
        in world.ask(world.plan(c0, to=(first, second), nodes=("c", "c"), plan_id="in none")).reason
    )
    assert world.ask(world.plan(a0, a1, to=(first, second), plan_id="whole")).ok
    world.gives_back(a0)
    world.gives_back(a1)
    for pod in (first, second):
        world.leader.bind(pod)
    world.waits(third)
    assert (
        world.ask(world.plan(b0, to=(third,), plan_id="away")).reason
        == "gang g has begun in topology.kubernetes.io/rack=x"
    )


@pytest.mark.parametrize("freed", [False, True])
def test_a_reservation_survives_its_leader(freed: bool) -> None:
    """The next leader reads it in the log; capacity freed meanwhile still belongs to the beneficiary."""
    world = World()
    world.waits(wants := high())
    world.ask(world.plan("low0"))
    objects = [build.node("n"), *world.bound.values(), wants]
    if freed:
        objects.remove(world.bound["low0"])
    records = tuple(world.leader.log)
    rival = high("rival", priority=1000)
    after = Leader(*objects, rival, term=world.leader.sequence + 1, records=records).nodes("n", gpus=2)
    assert (wants.metadata.uid in after.binds()) == freed
    assert rival.metadata.uid not in after.binds()
    assert after.core.book.overbooked() == []
    if not freed:
        assert any(isinstance(record, DecisionBatch) and record.reservations for _, record in after.log), (
            "written again under the new term"
        )


def test_why_describes_the_plan_to_beneficiary_and_victim() -> None:
    world = World()
    world.waits(high())
    world.ask(world.plan("low0"))

    def why(name: str) -> str:
        answer = finish(questions.why(world.leader.core, WhyQuery(namespace="team", name=name), 0.0, 0.0))
        assert answer.explanation is not None
        return answer.explanation.sentence

    assert why("high").endswith("pods being preempted for it: team/low0 (plan plan)")
    assert why("low0").endswith("it is being preempted for team/high (plan plan)")
    assert "plan" not in why("low1")


def test_a_new_leader_publishes_the_end_of_an_obsolete_reservation() -> None:
    """Otherwise the preemptor would go on requesting its evictions until the deadline."""
    world = World()
    world.waits(high())
    plan = world.plan("low0")
    world.ask(plan)
    after = Leader(
        build.node("n"), *world.bound.values(), term=world.leader.sequence + 1, records=tuple(world.leader.log)
    ).nodes("n", gpus=2)
    (abandoned,) = after.events(PreemptionAbandoned)
    assert abandoned.plan == plan
    assert [r.over for _, record in after.log if isinstance(record, DecisionBatch) for r in record.reservations] == [
        True
    ]
    assert after.core.phase == "leading"


def test_a_victim_that_fits_nowhere_else_is_evicted() -> None:
    """The planner saw a free GPU there, but does not know all filters.

    Pods of higher priority do not wait.
    """
    world = World("a", "b")
    there = world.on("b")[0]
    world.gives_back(there)
    (victim, _) = world.on("a")
    world.waits(high("high", node_selector={"kubernetes.io/hostname": "a"}))
    world.leader.facts(build.node("b", taints=(Taint(key="kept", effect="NoSchedule"),)))
    plan = world.plan(victim, nodes=("a",))
    moving = msgspec.structs.replace(plan, victims=(msgspec.structs.replace(plan.victims[0], action="move", to="b"),))
    answer = world.ask(moving)
    assert answer.ok
    assert answer.plan is not None
    assert [(v.action, v.to) for v in answer.plan.victims] == [("evict", "")]
    assert [r.plan for r in world.records()] == [answer.plan], "what stands in the log is what is done"


def test_a_plan_too_large_for_a_log_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "RECORD_MOST_BYTES", 100)
    world = World()
    world.waits(high())
    assert "a log record holds at most 100" in refused(world, world.plan("low0"))
    assert world.records() == []
