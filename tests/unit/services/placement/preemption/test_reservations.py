"""Reservations.

What is refused, what is booked, which pod gets freed capacity, and what survives a leader.
"""

from __future__ import annotations

import msgspec
import pytest

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.preemption import reservations
from services.placement.queries import questions
from services.placement.scheduling.late_claims import KEPT_S
from shared.contracts.commands import Answer, SelectNode
from shared.contracts.events import PreemptionAbandoned, PreemptionExecuted, PreemptionReserved
from shared.contracts.facts import Gone
from shared.contracts.log import DecisionBatch
from shared.contracts.preemption import Reserved
from shared.contracts.queries import WhyQuery
from shared.model import names
from shared.model.life import STUCK_S
from shared.model.objects import Pod, PvcSource, Taint, Volume
from tests.support import build
from tests.support.harness.nodes import STRATEGIES
from tests.support.harness.placement import Placement, only
from tests.support.harness.proposals import DEADLINE_S, Proposals, full_cluster, high, low, refused
from tests.unit.services.placement.scheduling.gangs.test_gangs import LATE, claim, volume

GUARANTEED_AND_LIMITED = (
    "queues: [{name: q, guaranteed: {gpus: 1}, limit: {gpus: 1}}, {name: o, guaranteed: {gpus: 1}}]"
)


def test_capacity_of_a_victim_goes_only_to_the_beneficiary() -> None:
    """Other pods of any size and priority arrive before and after the victim ends."""
    cluster = full_cluster()
    cluster.wait(wants := high())
    assert cluster.propose(cluster.plan("low0")).ok
    cluster.wait(rival := high("rival", priority=1000))
    cluster.release("low0")
    assert cluster.placement.binds()[wants.metadata.uid].node == "n"
    assert rival.metadata.uid not in cluster.placement.binds()
    assert [
        type(e) for e in (*cluster.placement.events(PreemptionReserved), *cluster.placement.events(PreemptionExecuted))
    ] == [
        PreemptionReserved,
        PreemptionExecuted,
    ]
    assert cluster.placement.core.book.overbooked() == []


def test_no_plan_is_for_a_pod_that_cannot_be_updated() -> None:
    """A Binding of a lost log may still bind it, with a grant that is void: its place would be given to others."""
    stuck, runs = build.gpu_pod("stuck", gpus=1, priority=100), build.gpu_pod("runs", gpus=1)
    placement = Placement(build.node("n"), stuck, runs)
    placement.send(m.InventorySeen(build.inventory("n", gpus=1)))
    no = m.PatchesAnswered((Answer(uid=stuck.metadata.uid, outcome="refused", message="a webhook says no"),))
    for _ in range(3):
        placement.send(no)
        placement.tick(2.5)
    placement.facts(build.newer(runs))
    assert placement.core.recovery.excluded
    cluster = Proposals(placement)
    cluster.bound["runs"] = placement.bind(placement.core.book.pods[runs.metadata.uid].pod)
    assert "cannot be updated" in refused(cluster, cluster.plan("runs", to=(stuck,)))
    placement.facts(build.newer(stuck))
    assert cluster.propose(cluster.plan("runs", to=(stuck,))).ok


def test_a_reservation_is_logged_before_it_may_be_executed() -> None:
    cluster = full_cluster()
    cluster.wait(high())
    cluster.placement.answer = False
    cluster.placement.now += 1
    commands = cluster.placement.send(m.ReserveAsked(cluster.plan("low0")))
    record = only(commands, m.Append)[0].record
    assert isinstance(record, DecisionBatch)
    assert [r.plan.plan_id for r in record.reservations] == ["plan"]
    assert only(commands, m.AnswerPlan) == []
    assert only(cluster.placement.send(m.Appended(900)), m.AnswerPlan)[0].answer.ok


def test_the_end_of_a_reservation_is_logged_after_its_decisions() -> None:
    cluster = full_cluster()
    cluster.wait(wants := high())
    cluster.propose(cluster.plan("low0"))
    cluster.release("low0")
    told = [
        (uid == wants.metadata.uid, over)
        for _, record in cluster.placement.log
        if isinstance(record, DecisionBatch)
        for uid, over in [*((d.uid, None) for d in record.decisions), *(("", r.over) for r in record.reservations)]
        if uid in ("", wants.metadata.uid)
    ]
    assert told == [(False, False), (True, None), (False, True)]


def test_a_repeated_request_gets_the_same_answer() -> None:
    cluster = full_cluster()
    cluster.wait(high())
    plan = cluster.plan("low0")
    first, again = cluster.propose(plan), cluster.propose(plan)
    assert first == again == Reserved(plan_id="plan", ok=True, places=first.places)
    assert len(cluster.records()) == 1


def test_a_plan_waits_until_all_victims_have_released() -> None:
    cluster = full_cluster()
    cluster.wait(wants := high(gpus=2))
    assert cluster.propose(cluster.plan("low0", "low1", to=(wants,))).ok
    cluster.release("low0")
    cluster.wait(wants, small := high("small"))
    cluster.release("low1")
    assert wants.metadata.uid in cluster.placement.binds()
    assert small.metadata.uid not in cluster.placement.binds()


def test_a_pod_of_equal_priority_is_not_preempted() -> None:
    cluster = full_cluster()
    cluster.wait(equal := high(priority=0))
    assert "of no lower priority" in refused(cluster, cluster.plan("low0", to=(equal,)))


def test_a_plan_with_an_unnecessary_victim_is_refused() -> None:
    cluster = full_cluster()
    cluster.wait(wants := high())
    assert "would fit without preempting team/low" in refused(cluster, cluster.plan("low0", "low1", to=(wants,)))


def test_a_plan_that_does_not_free_enough_is_refused() -> None:
    cluster = full_cluster()
    cluster.wait(wants := high(gpus=2))
    assert "would not fit even without the victims" in refused(cluster, cluster.plan("low0", to=(wants,)))


def test_a_plan_is_refused_if_its_victim_has_another_grant_by_now() -> None:
    cluster = full_cluster()
    cluster.wait(high())
    plan = cluster.plan("low0")
    victims = (msgspec.structs.replace(plan.victims[0], grant_id="another"),)
    assert "does not have that grant any more" in refused(cluster, msgspec.structs.replace(plan, victims=victims))
    cluster.release("low0")
    assert "is not pending" in refused(full_cluster(), plan)


def test_a_plan_for_a_pod_that_never_preempts_is_refused() -> None:
    cluster = full_cluster()
    cluster.wait(meek := high(preemption_policy="Never"))
    assert "Never" in refused(cluster, cluster.plan("low0", to=(meek,)))


def test_there_is_one_plan_per_beneficiary() -> None:
    cluster = full_cluster("a", "b")
    first, second = high("h1"), high("h2")
    cluster.wait(first, second)
    on_a, on_b = cluster.on("a"), cluster.on("b")
    assert cluster.propose(cluster.plan(on_a[0], to=(first,))).ok
    assert "another plan" in cluster.propose(cluster.plan(on_b[0], to=(first,), plan_id="three")).reason
    assert cluster.propose(cluster.plan(on_b[0], to=(second,), plan_id="four")).ok


def test_a_deadline_releases_the_reservation() -> None:
    cluster = full_cluster()
    cluster.wait(high())
    cluster.propose(cluster.plan("low0"))
    cluster.placement.now += DEADLINE_S - 10
    cluster.placement.send(m.BeatSeen(("n",)))
    cluster.placement.tick(11)
    assert "not all of its victims were gone after 61 s" in cluster.placement.events(PreemptionAbandoned)[0].reason
    assert cluster.records()[-1].over
    cluster.release("low0")
    rival = high("rival", priority=1000)
    cluster.placement.facts(rival)
    assert rival.metadata.uid in {**cluster.placement.binds()} or cluster.placement.core.book.overbooked() == []


def deleted(cluster: Proposals, name: str, grace_s: int) -> None:
    pod = cluster.bound[name]
    meta = msgspec.structs.replace(
        pod.metadata,
        deletion_timestamp="2030-01-01T00:00:00Z",
        deletion_grace_period_seconds=grace_s,
        resource_version=build.next_version(),
    )
    cluster.placement.facts(msgspec.structs.replace(pod, metadata=meta))


def passes(cluster: Proposals, seconds: int) -> None:
    for _ in range(seconds):
        cluster.placement.send(m.BeatSeen(("n",)))
        cluster.placement.tick(1)


def test_a_plan_is_kept_while_all_victims_are_within_their_grace_periods() -> None:
    """One of them was deleted with a longer grace period than its own."""
    cluster = full_cluster()
    cluster.wait(wants := high(gpus=2))
    assert cluster.propose(cluster.plan("low0", "low1", to=(wants,), nodes=("n",))).ok
    cluster.release("low0")
    passes(cluster, 50)
    deleted(cluster, "low1", grace_s=200)
    passes(cluster, 199)
    assert cluster.placement.events(PreemptionAbandoned) == []
    cluster.release("low1")
    assert cluster.placement.binds()[wants.metadata.uid].node == "n"


def test_a_victim_that_exceeds_its_grace_period_is_waited_for_no_longer() -> None:
    cluster = full_cluster()
    cluster.wait(high())
    cluster.propose(cluster.plan("low0"))
    deleted(cluster, "low0", grace_s=100)
    passes(cluster, 100 + int(STUCK_S))
    assert cluster.placement.events(PreemptionAbandoned) == []
    passes(cluster, 2)
    assert "not all of its victims were gone" in cluster.placement.events(PreemptionAbandoned)[0].reason


def test_a_plan_is_cancelled_at_its_deadline_if_a_victim_is_not_terminating() -> None:
    cluster = full_cluster()
    cluster.wait(wants := high(gpus=2))
    assert cluster.propose(cluster.plan("low0", "low1", to=(wants,), nodes=("n",))).ok
    deleted(cluster, "low0", grace_s=200)
    passes(cluster, DEADLINE_S + 1)
    assert len(cluster.placement.events(PreemptionAbandoned)) == 1


def test_capacity_freed_by_a_cancelled_plan_goes_to_its_beneficiary_if_it_fits() -> None:
    cluster = full_cluster()
    cluster.wait(wants := high(gpus=2))
    assert cluster.propose(cluster.plan("low0", "low1", to=(wants,), nodes=("n",))).ok
    cluster.wait(low("rival", gpus=2))
    cluster.placement.send(m.AbandonAsked("plan", "a disruption budget says no"))
    cluster.release("low0")
    cluster.release("low1")
    assert cluster.placement.binds().keys() & {wants.metadata.uid, "uid-team-rival"} == {wants.metadata.uid}


def test_capacity_freed_by_a_cancelled_plan_is_available_at_once() -> None:
    cluster = full_cluster()
    cluster.wait(wants := high(gpus=2))
    assert cluster.propose(cluster.plan("low0", "low1", to=(wants,), nodes=("n",))).ok
    cluster.release("low0")
    cluster.wait(rival := high("rival", priority=1000))
    cluster.placement.send(m.AbandonAsked("plan", "a disruption budget says no"))
    assert cluster.placement.binds()[rival.metadata.uid].node == "n"


def test_a_reservation_ends_with_its_beneficiary() -> None:
    cluster = full_cluster()
    cluster.wait(wants := high())
    cluster.propose(cluster.plan("low0", to=(wants,)))
    before = cluster.placement.core.book.digest()
    cluster.placement.send(m.FactsSeen((Gone(object=wants),)))
    assert "is not pending any more" in cluster.placement.events(PreemptionAbandoned)[0].reason
    assert not any(key.startswith("grant/reserved/") for key in cluster.placement.core.book.digest())
    assert any(key.startswith("grant/reserved/") for key in before)


def test_the_preemptor_may_cancel_a_plan() -> None:
    cluster = full_cluster()
    cluster.wait(high())
    cluster.propose(cluster.plan("low0"))
    answer = only(cluster.placement.send(m.AbandonAsked("plan", "a disruption budget says no")), m.AnswerPlan)[0].answer
    assert answer.ok
    assert cluster.placement.events(PreemptionAbandoned)[0].reason == "a disruption budget says no"


def gang(count: int) -> list[Pod]:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": str(count)}
    return [high(f"g{i}", annotations=notes) for i in range(count)]


def test_a_gang_gets_all_its_places_at_once_or_none() -> None:
    cluster = full_cluster("a", "b")
    members = gang(3)
    cluster.wait(*members)
    victims = [*cluster.on("a"), cluster.on("b")[0]]
    assert (
        "needs 3 places at once"
        in cluster.propose(cluster.plan(*victims[:2], to=tuple(members[:2]), plan_id="two")).reason
    )
    assert cluster.propose(cluster.plan(*victims, to=tuple(members))).ok
    for name in victims[:2]:
        cluster.release(name)
    assert not {p.metadata.uid for p in members} & cluster.placement.binds().keys()
    cluster.release(victims[2])
    assert {cluster.placement.binds()[p.metadata.uid].node for p in members} == {"a", "b"}
    batches = [
        {d.name for d in record.decisions} for _, record in cluster.placement.log if isinstance(record, DecisionBatch)
    ]
    assert {"g0", "g1", "g2"} in batches


@pytest.mark.parametrize("park_mib", [0, 40 * 1024])
def test_a_full_host_takes_no_victim(park_mib: int) -> None:
    placement = Placement(build.node("n"))
    placement.send(m.InventorySeen(build.inventory("n", gpus=1, strategies=STRATEGIES, park_mib=park_mib)))
    cluster = Proposals(placement)
    cluster.run(build.gpu_pod("slice", memory="40Gi", compute=50, annotations={"kerf.dev/isolation": "firm"}))
    cluster.wait(wants := high())
    plan = cluster.plan("slice", to=(wants,))
    victims = tuple(msgspec.structs.replace(victim, action="checkpoint") for victim in plan.victims)
    plan = msgspec.structs.replace(plan, victims=victims)
    if park_mib:
        cluster.placement.send(m.ReserveAsked(plan))
        assert [record.plan for record in cluster.records()] == [plan]
    else:
        assert "0 MiB free for checkpointed GPU memory" in refused(cluster, plan)


def test_a_pod_of_a_gang_never_takes_what_is_reserved_for_another_one() -> None:
    """Their places are decided anew when the victims are gone, and the policy prefers another GPU by then."""
    cluster = Proposals(Placement(policy="binpack").nodes("n", gpus=2))
    for pod in (low("stays", gpus=0, memory="20Gi"), low("beside", gpus=0, memory="60Gi"), low("whole")):
        cluster.run(pod)
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    part, whole = high("part", gpus=0, memory="20Gi", annotations=notes), high("whole-gpu", annotations=notes)
    cluster.wait(part, whole)
    assert cluster.propose(cluster.plan("beside", "whole", to=(part, whole))).ok
    cluster.wait(high("rival", priority=1000))
    cluster.placement.core.engine.default_policy = "spread"
    cluster.release("beside")
    cluster.release("whole")
    assert {p.metadata.uid for p in (part, whole)} <= cluster.placement.binds().keys()
    assert cluster.placement.events(PreemptionAbandoned) == []


@pytest.mark.parametrize("launched_on", ["n", "other"])
def test_a_plan_waits_for_victims_that_have_no_gpu_where_it_needs_their_cpu(launched_on: str) -> None:
    """Such as the launcher of a gang."""
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    cluster = Proposals(Placement().nodes("n", gpus=1))
    cluster.placement.facts(build.node("other"))
    only_on = {"node_selector": {"kubernetes.io/hostname": launched_on}}
    pods = (build.pod("launcher", annotations=notes, **only_on), low("worker", annotations=notes))
    cluster.placement.facts(*pods)
    for pod in pods:
        cluster.bound[pod.metadata.name] = cluster.placement.bind(pod)
    cluster.wait(wants := high())
    assert cluster.propose(cluster.plan("worker", "launcher")).ok
    being = cluster.placement.core.preemption.describe
    assert being(wants.metadata.uid) == "pods being preempted for it: team/worker, team/launcher (plan plan)"
    cluster.release("worker")
    if launched_on == "n":
        assert being(wants.metadata.uid) == "pods being preempted for it: team/launcher (plan plan)"
    assert (wants.metadata.uid in cluster.placement.binds()) == (launched_on == "other")
    cluster.placement.facts(build.newer(cluster.bound["launcher"], phase="Failed"))
    assert cluster.placement.binds()[wants.metadata.uid].node == "n"


def test_a_volume_that_binds_late_gets_its_node_before_its_pod_is_bound() -> None:
    """Otherwise its provisioner waits for a node for ever, and the container with the GPU for its volume."""
    wants = high(volumes=(Volume(name="data", persistent_volume_claim=PvcSource(claim_name="data-0")),))
    cluster = full_cluster()
    cluster.placement.facts(LATE, claim("data-0"))
    cluster.wait(wants)
    assert cluster.propose(cluster.plan("low0")).ok
    cluster.release("low0")
    selected = [one for one in cluster.placement.patches() if isinstance(one, SelectNode)]
    assert [(one.claim, one.node) for one in selected] == [("data-0", "n")]
    rival = high("rival", priority=1000)
    cluster.wait(rival)
    cluster.placement.tick(5.0)
    assert not {wants.metadata.uid, rival.metadata.uid} & cluster.placement.binds().keys(), "its place is kept"
    cluster.placement.facts(claim("data-0", volume="pv-0"), volume("pv-0", of="data-0"))
    cluster.placement.tick(1.0)
    assert cluster.placement.binds()[wants.metadata.uid].node == "n"
    assert rival.metadata.uid not in cluster.placement.binds()


def awaiting_a_volume() -> tuple[Proposals, Pod]:
    """All victims of the plan are gone after 50 s, and the volume of the pod is being made on node n."""
    wants = high(volumes=(Volume(name="data", persistent_volume_claim=PvcSource(claim_name="data-0")),))
    cluster = full_cluster()
    cluster.placement.facts(LATE, claim("data-0"))
    cluster.wait(wants)
    assert cluster.propose(cluster.plan("low0")).ok
    _pass(cluster, DEADLINE_S - 10)
    cluster.release("low0")
    return cluster, wants


def _pass(cluster: Proposals, seconds: float) -> None:
    cluster.placement.now += seconds
    cluster.placement.send(m.BeatSeen(("n", "other")))
    cluster.placement.tick()


def test_a_plan_outlasts_its_deadline_while_a_volume_is_made() -> None:
    """It was given up although all victims were gone, "because" they were not. The pod is tried nowhere else."""
    cluster, wants = awaiting_a_volume()
    placement = cluster.placement
    placement.nodes("other")
    for _ in range(8):
        _pass(cluster, 60)
    assert placement.events(PreemptionAbandoned) == []
    assert "its place is kept while its volumes are made" in placement.core.preemption.describe(wants.metadata.uid)
    assert {one.node for one in placement.patches() if isinstance(one, SelectNode)} == {"n"}
    placement.facts(claim("data-0", volume="pv-0"), volume("pv-0", of="data-0", node="n"))
    assert placement.binds()[wants.metadata.uid].node == "n"


def test_a_plan_is_given_up_for_a_volume_that_is_not_made() -> None:
    cluster, _ = awaiting_a_volume()
    _pass(cluster, KEPT_S + 1)
    assert "volumes of its beneficiaries were not made after 65" in (
        cluster.placement.events(PreemptionAbandoned)[0].reason
    )


def test_a_member_that_is_gone_keeps_its_gang_from_no_other_plan() -> None:
    cluster = full_cluster()
    first, gone = gang(2)
    replacement = high("again", annotations=gone.metadata.annotations)
    cluster.wait(first, gone)
    assert cluster.propose(cluster.plan("low0", "low1", to=(first, gone), plan_id="old")).ok
    cluster.placement.send(m.FactsSeen((Gone(object=gone),)))
    assert [e.plan.plan_id for e in cluster.placement.events(PreemptionAbandoned)] == ["old"]
    cluster.wait(replacement)
    assert cluster.propose(cluster.plan("low0", "low1", to=(first, replacement), plan_id="new")).ok


def test_a_gang_is_reserved_in_one_rack_and_in_the_rack_that_it_has_begun_in() -> None:
    cluster = full_cluster("a", "b", "c")
    for node, rack in (("a", "x"), ("b", "y")):
        cluster.placement.facts(build.node(node, labels={"topology.kubernetes.io/rack": rack}))
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2", "kerf.dev/gang-topology": "required=rack"}
    first, second, third = (high(f"g{i}", annotations=notes) for i in range(3))
    cluster.wait(first, second)
    (a0, a1), (b0, _), (c0, _) = (cluster.on(node) for node in "abc")
    assert (
        "must be in one topology.kubernetes.io/rack"
        in cluster.propose(cluster.plan(a0, b0, to=(first, second), plan_id="split")).reason
    )
    assert (
        "must be in one topology.kubernetes.io/rack"
        in cluster.propose(cluster.plan(c0, to=(first, second), nodes=("c", "c"), plan_id="in none")).reason
    )
    assert cluster.propose(cluster.plan(a0, a1, to=(first, second), plan_id="whole")).ok
    cluster.release(a0)
    cluster.release(a1)
    for pod in (first, second):
        cluster.placement.bind(pod)
    cluster.wait(third)
    assert (
        cluster.propose(cluster.plan(b0, to=(third,), plan_id="away")).reason
        == "gang g has begun in topology.kubernetes.io/rack=x"
    )


@pytest.mark.parametrize("freed", [False, True])
def test_a_reservation_survives_its_leader(freed: bool) -> None:
    """The next leader reads it in the log; capacity freed meanwhile still belongs to the beneficiary."""
    cluster = full_cluster()
    cluster.wait(wants := high())
    cluster.propose(cluster.plan("low0"))
    objects = [build.node("n"), *cluster.bound.values(), wants]
    if freed:
        objects.remove(cluster.bound["low0"])
    records = tuple(cluster.placement.log)
    rival = high("rival", priority=1000)
    after = Placement(*objects, rival, term=cluster.placement.sequence + 1, records=records).nodes("n", gpus=2)
    assert (wants.metadata.uid in after.binds()) == freed
    assert rival.metadata.uid not in after.binds()
    assert after.core.book.overbooked() == []
    if not freed:
        assert any(isinstance(record, DecisionBatch) and record.reservations for _, record in after.log), (
            "written again under the new term"
        )


def test_why_describes_the_plan_to_beneficiary_and_victim() -> None:
    cluster = full_cluster()
    cluster.wait(high())
    cluster.propose(cluster.plan("low0"))

    def why(name: str) -> str:
        answer = finish(questions.why(cluster.placement.core, WhyQuery(namespace="team", name=name), 0.0, 0.0))
        assert answer.explanation is not None
        return answer.explanation.sentence

    assert why("high").endswith("pods being preempted for it: team/low0 (plan plan)")
    assert why("low0").endswith("it is being preempted for team/high (plan plan)")
    assert "plan" not in why("low1")


def test_a_new_leader_publishes_the_end_of_an_obsolete_reservation() -> None:
    """Otherwise the preemptor would go on requesting its evictions until the deadline."""
    cluster = full_cluster()
    cluster.wait(high())
    plan = cluster.plan("low0")
    cluster.propose(plan)
    after = Placement(
        build.node("n"),
        *cluster.bound.values(),
        term=cluster.placement.sequence + 1,
        records=tuple(cluster.placement.log),
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
    cluster = full_cluster("a", "b")
    there = cluster.on("b")[0]
    cluster.release(there)
    (victim, _) = cluster.on("a")
    cluster.wait(high("high", node_selector={"kubernetes.io/hostname": "a"}))
    cluster.placement.facts(build.node("b", taints=(Taint(key="kept", effect="NoSchedule"),)))
    plan = cluster.plan(victim, nodes=("a",))
    moving = msgspec.structs.replace(plan, victims=(msgspec.structs.replace(plan.victims[0], action="move", to="b"),))
    answer = cluster.propose(moving)
    assert answer.ok
    assert answer.plan is not None
    assert [(v.action, v.to) for v in answer.plan.victims] == [("evict", "")]
    assert [r.plan for r in cluster.records()] == [answer.plan], "what stands in the log is what is done"


def test_a_plan_too_large_for_a_log_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "RECORD_MOST_BYTES", 100)
    cluster = full_cluster()
    cluster.wait(high())
    assert "a log record holds at most 100" in refused(cluster, cluster.plan("low0"))
    assert cluster.records() == []


def test_a_quota_is_compared_by_the_gpus_of_the_plan() -> None:
    """20 GiB are a quarter of the largest GPU and 0.84 of the one that the plan frees, beside 0.5 in use."""
    placement = Placement(build.queues(GUARANTEED_AND_LIMITED))
    for node, gib in (("large", 80), ("small", 24), ("other", 24)):
        placement.facts(build.node(node))
        placement.send(m.InventorySeen(build.inventory(node, gpus=1, memory_mib=gib * 1024)))
    cluster = Proposals(placement)
    for name, queue, node, ask in (
        ("fixed", "o", "large", {"gpus": 1}),
        ("half", "q", "other", {"memory": "12Gi"}),
        ("lent", "o", "small", {"gpus": 1}),
    ):
        cluster.run(
            build.gpu_pod(
                name, **ask, labels={names.LABEL_QUEUE: queue}, node_selector={"kubernetes.io/hostname": node}
            )
        )
    over, within = (
        build.gpu_pod(
            name,
            memory=name,
            labels={names.LABEL_QUEUE: "q"},
            node_selector={"kubernetes.io/hostname": "small"},
        )
        for name in ("20Gi", "12Gi")
    )
    cluster.wait(over)
    assert "would exceed the quota of queue q" in refused(cluster, cluster.plan("lent", to=(over,)))
    placement.gone(over)
    cluster.wait(within)
    assert cluster.propose(cluster.plan("lent", to=(within,))).ok


def gang_of_four() -> tuple[Proposals, list[Pod]]:
    """A gang that can spare one of its four members, and two pods that want the GPU of one."""
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "4", "kerf.dev/gang-min": "3"}
    cluster = Proposals(Placement().nodes("a", "b", "c", "d", gpus=1))
    members = [low(f"g{number}", annotations=notes) for number in range(4)]
    cluster.placement.facts(*members)
    for pod in members:
        cluster.bound[pod.metadata.name] = cluster.placement.bind(pod)
    waiting = [high("first"), high("second")]
    cluster.wait(*waiting)
    return cluster, waiting


def test_plans_of_one_moment_take_no_gang_below_its_minimum_by_one_member_each() -> None:
    """None of them is logged when the second is asked for."""
    cluster, (first, second) = gang_of_four()
    plans = [cluster.plan("g3", to=(first,), plan_id="p1"), cluster.plan("g2", to=(second,), plan_id="p2")]
    cluster.placement.answer = False
    assert only(cluster.placement.send(m.ReserveAsked(plans[0])), m.AnswerPlan) == []
    (no,) = only(cluster.placement.send(m.ReserveAsked(plans[1])), m.AnswerPlan)
    assert (no.answer.ok, "fewer than its minimum of 3 members" in no.answer.reason) == (False, True)


@pytest.mark.parametrize("logged", [False, True])
def test_a_member_counts_again_when_its_plan_is_given_up(logged: bool) -> None:
    cluster, (first, second) = gang_of_four()
    plans = [cluster.plan("g3", to=(first,), plan_id="p1"), cluster.plan("g2", to=(second,), plan_id="p2")]
    cluster.placement.answer = logged
    cluster.placement.send(m.ReserveAsked(plans[0]))
    cluster.placement.send(m.AbandonAsked("p1", "another one is cheaper"))
    cluster.placement.answer = True
    if not logged:
        cluster.placement.send(m.Appended(900))
    cluster.placement.tick()
    assert cluster.propose(plans[1]).ok


def test_a_plan_too_large_for_a_log_record_marks_no_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, (first, second) = gang_of_four()
    with monkeypatch.context() as small:
        small.setattr(reservations, "RECORD_MOST_BYTES", 100)
        assert not cluster.propose(cluster.plan("g3", to=(first,), plan_id="p1")).ok
    assert cluster.propose(cluster.plan("g2", to=(second,), plan_id="p2")).ok
