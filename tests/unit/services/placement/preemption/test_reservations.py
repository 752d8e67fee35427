"""Plans of preemption: what is refused, what is kept, for whom what is freed is, and what outlives a leader."""

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
    """Nodes of two GPUs, full of pods of no priority."""

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
        """Evicted, gone, and its node has said so."""
        pod = self.bound.pop(name)
        grant_id = self.leader.core.book.pods[pod.metadata.uid].grant_id
        self.leader.send(m.FactsSeen((Gone(object=pod),)))
        self.leader.send(m.ReleaseSeen(pod.spec.node_name, grant_id))

    def records(self) -> list[ReservationRecord]:
        return [r for _, record in self.leader.log if isinstance(record, DecisionBatch) for r in record.reservations]


def test_what_a_victim_gives_back_is_the_beneficiarys_and_nobody_elses() -> None:
    """Others of any size and priority come before and after the victim goes."""
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


def test_it_stands_in_the_log_before_anybody_is_told_to_execute_it() -> None:
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


def test_it_is_over_in_the_log_only_after_its_decisions() -> None:
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


def test_asked_again_it_answers_the_same() -> None:
    world = World()
    world.waits(high())
    plan = world.plan("low0")
    assert world.ask(plan) == world.ask(plan) == Reserved(plan_id="plan", ok=True)
    assert len(world.records()) == 1


def test_two_victims_for_two_gpus_and_one_alone_frees_nothing() -> None:
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


def test_nobody_gives_way_to_an_equal() -> None:
    world = World()
    world.waits(equal := high(priority=0))
    assert "of no lower priority" in refused(world, world.plan("low0", to=(equal,)))


def test_nobody_is_taken_who_need_not_go() -> None:
    world = World()
    world.waits(wants := high())
    assert "would fit without team/low" in refused(world, world.plan("low0", "low1", to=(wants,)))


def test_a_plan_that_does_not_make_room_is_refused() -> None:
    world = World()
    world.waits(wants := high(gpus=2))
    assert "would not fit even then" in refused(world, world.plan("low0", to=(wants,)))


def test_a_victim_that_has_another_grant_by_now_is_not_meant() -> None:
    world = World()
    world.waits(high())
    plan = world.plan("low0")
    world.gives_back("low0")
    assert "does not" in refused(World(), plan)


def test_who_never_preempts_has_nobody_give_way() -> None:
    world = World()
    world.waits(meek := high(preemption_policy="Never"))
    assert "Never" in refused(world, world.plan("low0", to=(meek,)))


def test_one_plan_a_node_and_a_beneficiary() -> None:
    world = World("a", "b")
    first, second = high("h1"), high("h2")
    world.waits(first, second)
    on_a, on_b = world.on("a"), world.on("b")
    assert world.ask(world.plan(on_a[0], to=(first,))).ok
    assert "another plan is under way for a" in world.ask(world.plan(on_a[1], to=(second,), plan_id="two")).reason
    assert "another plan" in world.ask(world.plan(on_b[0], to=(first,), plan_id="three")).reason
    assert world.ask(world.plan(on_b[0], to=(second,), plan_id="four")).ok


def test_a_deadline_gives_the_place_back_to_everybody() -> None:
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


def test_a_plan_all_of_whose_victims_end_within_their_time_is_not_given_up() -> None:
    """Somebody deleted one of them with a longer grace period than its own."""
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


def test_a_victim_that_does_not_end_in_its_time_is_waited_for_no_more() -> None:
    world = World()
    world.waits(high())
    world.ask(world.plan("low0"))
    deleted(world, "low0", grace_s=100)
    passes(world, 100 + int(STUCK_S))
    assert world.leader.events(PreemptionAbandoned) == []
    passes(world, 2)
    assert "not all of its victims were gone" in world.leader.events(PreemptionAbandoned)[0].reason


def test_a_plan_is_given_up_at_its_deadline_where_one_of_its_victims_does_not_even_end() -> None:
    world = World()
    world.waits(wants := high(gpus=2))
    assert world.ask(world.plan("low0", "low1", to=(wants,), nodes=("n",))).ok
    deleted(world, "low0", grace_s=200)
    passes(world, DEADLINE_S + 1)
    assert len(world.leader.events(PreemptionAbandoned)) == 1


def test_what_was_freed_for_a_plan_that_is_given_up_is_first_of_all_the_beneficiarys_if_it_is_enough() -> None:
    world = World()
    world.waits(wants := high(gpus=2))
    assert world.ask(world.plan("low0", "low1", to=(wants,), nodes=("n",))).ok
    world.waits(low("rival", gpus=2))
    world.leader.send(m.AbandonAsked("plan", "a disruption budget says no"))
    world.gives_back("low0")
    world.gives_back("low1")
    assert world.leader.binds().keys() & {wants.metadata.uid, "uid-team-rival"} == {wants.metadata.uid}


def test_what_was_freed_for_a_plan_that_is_given_up_is_somebody_elses_at_once() -> None:
    world = World()
    world.waits(wants := high(gpus=2))
    assert world.ask(world.plan("low0", "low1", to=(wants,), nodes=("n",))).ok
    world.gives_back("low0")
    world.waits(rival := high("rival", priority=1000))
    world.leader.send(m.AbandonAsked("plan", "a disruption budget says no"))
    assert world.leader.binds()[rival.metadata.uid].node == "n"


def test_a_beneficiary_that_goes_takes_its_reservation_with_it() -> None:
    world = World()
    world.waits(wants := high())
    world.ask(world.plan("low0", to=(wants,)))
    before = world.leader.core.book.digest()
    world.leader.send(m.FactsSeen((Gone(object=wants),)))
    assert "does not wait any more" in world.leader.events(PreemptionAbandoned)[0].reason
    assert not any(key.startswith("grant/reserved/") for key in world.leader.core.book.digest())
    assert any(key.startswith("grant/reserved/") for key in before)


def test_the_preemptor_may_give_it_up() -> None:
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


def test_a_gang_that_must_be_in_one_rack_gets_no_places_in_two_nor_beside_the_rack_that_it_has_begun_in() -> None:
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
def test_a_reservation_outlives_its_leader(freed: bool) -> None:
    """The next one reads it in the log; what was freed meanwhile is still the beneficiary's."""
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


def test_both_sides_can_ask_why() -> None:
    world = World()
    world.waits(high())
    world.ask(world.plan("low0"))

    def why(name: str) -> str:
        answer = finish(questions.why(world.leader.core, WhyQuery(namespace="team", name=name), 0.0, 0.0))
        assert answer.explanation is not None
        return answer.explanation.sentence

    assert why("high").endswith("team/low0 makes room for it (plan plan)")
    assert why("low0").endswith("it is to make room for team/high (plan plan)")
    assert "plan" not in why("low1")


def test_a_reservation_that_nobody_needs_under_a_new_leader_is_said_to_be_over() -> None:
    """Else the preemptor, which knows of it, would go on asking for its evictions for as long as it might last."""
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


def test_who_has_no_place_elsewhere_by_all_that_placement_knows_just_ends() -> None:
    """The planner saw a free GPU there, and knows nothing of the other things that keep a pod from a node. Who is more important
    does not wait for that."""
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


def test_a_plan_that_no_record_holds_is_refused_and_the_session_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "RECORD_MOST_BYTES", 100)
    world = World()
    world.waits(high())
    assert "the log takes 100 in one record" in refused(world, world.plan("low0"))
    assert world.records() == []
