"""Suspension and resumption: what is booked when, and what a new leader does."""

from __future__ import annotations

import msgspec
import pytest

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries.reader import inspect
from shared.contracts.commands import SuspendPod, TouchPod
from shared.contracts.events import PreemptionAbandoned
from shared.contracts.facts import Put
from shared.contracts.log import ReadyRecord
from shared.contracts.node_commands import NodeSyncAnswer
from shared.contracts.preemption import Action, Beneficiary, Plan, Reserved, Victim
from shared.contracts.queries import InspectQuery
from shared.model import names
from shared.model.objects import Pod
from shared.model.suspension import Suspension, decode_suspension, encode_suspension
from tests.support import build
from tests.support.harness.placement import Placement, only
from tests.support.harness.proposals import Proposals
from tests.support.harness.turns import Site
from tests.support.whatif import why

GPU_MIB = 81_920
PARK_MIB = 2 * GPU_MIB


class SharedGpu:
    """One GPU of a node that enforces slices.

    A slice of half its memory and all its compute runs; one that needs half of both is pending.
    """

    def __init__(self) -> None:
        self.placement = Placement().nodes(
            "n", gpus=1, strategies=("exclusive", "advisory", "interposer"), park_mib=PARK_MIB
        )
        self.pods = Proposals(self.placement)
        self.low = self.pods.run(self.slice("low", compute=100))
        self.high = self.slice("high", compute=50, priority=100)
        self.pods.wait(self.high)

    @staticmethod
    def slice(name: str, *, compute: int, priority: int = 0) -> Pod:
        return build.gpu_pod(
            name,
            memory=f"{GPU_MIB // 2}Mi",
            compute=compute,
            priority=priority,
            annotations={"kerf.dev/isolation": "firm"},
        )

    @property
    def grant_id(self) -> str:
        return self.pods.grant_id(self.low)

    def plan(self, action: Action = "pause", keeps_milli: int = 0) -> Plan:
        plan = self.pods.plan("low", to=(self.high,))
        victim = msgspec.structs.replace(plan.victims[0], action=action, keeps_milli=keeps_milli)
        return msgspec.structs.replace(plan, victims=(victim,))

    def propose(self, plan: Plan) -> tuple[Reserved, list[m.Command]]:
        commands = self.placement.send(m.ReserveAsked(plan))
        return only(commands, m.AnswerPlan)[-1].answer, commands

    def annotate(self, suspension: str) -> list[m.Command]:
        """Applies a SuspendPod as the watcher does."""
        notes = {k: v for k, v in self.low.metadata.annotations.items() if k != names.ANNOTATION_SUSPENDED} | (
            {names.ANNOTATION_SUSPENDED: suspension} if suspension else {}
        )
        meta = msgspec.structs.replace(self.low.metadata, resource_version=build.next_version(), annotations=notes)
        self.low = msgspec.structs.replace(self.low, metadata=meta)
        return self.placement.send(m.FactsSeen((Put(object=self.low),)))

    def answer(self, suspension: Suspension | None, reason: str = "") -> list[m.Command]:
        return self.placement.send(m.GrantAcknowledged("n", self.grant_id, reason=reason, suspension=suspension))

    def free(self) -> tuple[int, int]:
        (room,) = self.placement.core.book.nodes["n"].gpus
        return room.free_mib, room.free_milli

    def wait(self, seconds: float) -> list[m.Command]:
        said: list[m.Command] = []
        for _ in range(round(seconds)):
            self.placement.now += 1
            said += self.placement.send(m.BeatSeen(("n",))) + self.placement.send(m.Tick())
        return said


def suspends(said: list[m.Command]) -> list[SuspendPod]:
    return [p for c in only(said, m.SendPatches) for p in c.patches if isinstance(p, SuspendPod)]


def suspended() -> SharedGpu:
    """Runs the plan until the beneficiary is placed."""
    gpu = SharedGpu()
    _, commands = gpu.propose(gpu.plan())
    (order,) = suspends(commands)
    gpu.annotate(order.suspension)
    gpu.answer(decode_suspension(order.suspension))
    return gpu


def test_a_suspension_is_ordered_when_logged_and_booked_when_confirmed() -> None:
    gpu = SharedGpu()
    answer, commands = gpu.propose(gpu.plan("throttle", keeps_milli=100))
    assert answer.ok
    (order,) = suspends(commands)
    assert decode_suspension(order.suspension) == Suspension(action="throttle", plan_id="plan", compute_milli=100)
    assert "makes room" not in order.reason
    assert "team/high" in order.reason
    (sent,) = [c for c in only(gpu.annotate(order.suspension), m.SendGrant) if c.grant.uid == gpu.low.metadata.uid]
    assert sent.grant.suspension == decode_suspension(order.suspension)
    assert gpu.high.metadata.uid not in gpu.placement.binds(), "nothing is free before the node confirms"
    gpu.answer(sent.grant.suspension)
    assert gpu.high.metadata.uid in gpu.placement.binds()
    assert gpu.placement.core.book.overbooked() == []
    assert gpu.free()[1] == 1000 - 100 - 500


def test_a_late_answer_to_another_order_books_nothing() -> None:
    gpu = SharedGpu()
    _, commands = gpu.propose(gpu.plan())
    gpu.annotate(suspends(commands)[0].suspension)
    gpu.answer(Suspension(action="pause", plan_id="another"))
    gpu.answer(None)
    assert gpu.high.metadata.uid not in gpu.placement.binds()


def test_an_order_that_the_node_cannot_execute_is_withdrawn() -> None:
    gpu = SharedGpu()
    _, commands = gpu.propose(gpu.plan())
    gpu.annotate(suspends(commands)[0].suspension)
    commands = gpu.answer(None, reason="its page cannot be written")
    (back,) = suspends(commands)
    assert (back.suspension, "its page cannot be written" in back.reason) == ("", True)
    (abandoned,) = [c.event for c in only(commands, m.Publish) if isinstance(c.event, PreemptionAbandoned)]
    assert "its page cannot be written" in abandoned.reason
    assert gpu.placement.core.preemption.reservations == {}


def test_a_failure_after_the_confirmation_withdraws_nothing_and_is_ordered_again_until_it_is_confirmed() -> None:
    """Its place is another's by now. Without the annotation both would start there when the node reboots."""
    gpu = suspended()
    assert gpu.high.metadata.uid in gpu.placement.binds()
    said = gpu.answer(None, reason="it failed in part")
    assert (suspends(said), only(said, m.SendGrant)) == ([], [])
    assert gpu.placement.core.book.overbooked() == []
    again = [c.grant for c in only(gpu.wait(12), m.SendGrant) if c.grant.uid == gpu.low.metadata.uid]
    assert len(again) >= 2
    assert decode_suspension(gpu.low.metadata.annotations[names.ANNOTATION_SUSPENDED]) == again[-1].suspension
    gpu.answer(again[-1].suspension)
    assert [c for c in only(gpu.wait(30), m.SendGrant) if c.grant.uid == gpu.low.metadata.uid] == []


def test_a_failure_after_the_confirmation_gives_no_plan_up() -> None:
    placement = Placement().nodes("n", gpus=2, strategies=("exclusive", "advisory", "interposer"))
    proposals = Proposals(placement)
    lows = [proposals.run(SharedGpu.slice(f"low{i}", compute=100)) for i in range(2)]
    high = build.gpu_pod(
        "high",
        gpus=2,
        memory=f"{GPU_MIB}Mi",
        compute=100,
        priority=100,
        annotations={names.ANNOTATION_ISOLATION: "firm"},
    )
    proposals.wait(high)
    plan = proposals.plan("low0", "low1", to=(high,), nodes=("n",))
    victims = tuple(msgspec.structs.replace(victim, action="pause") for victim in plan.victims)
    said = placement.send(m.ReserveAsked(msgspec.structs.replace(plan, victims=victims)))
    orders = suspends(said)
    assert len(orders) == 2
    for pod, order in zip(lows, orders, strict=True):
        notes = pod.metadata.annotations | {names.ANNOTATION_SUSPENDED: order.suspension}
        placement.facts(build.newer(pod, annotations=notes))
    first = placement.core.book.pods[orders[0].uid].grant_id
    placement.send(m.GrantAcknowledged("n", first, suspension=decode_suspension(orders[0].suspension)))
    placement.send(m.GrantAcknowledged("n", first, reason="it failed in part"))
    assert placement.events(PreemptionAbandoned) == []
    assert [found.closing for found in placement.core.preemption.reservations.values()] == [False]


def test_a_lost_order_is_repeated() -> None:
    gpu = SharedGpu()
    _, commands = gpu.propose(gpu.plan())
    assert len(suspends(commands)) == 1
    first, again = suspends(commands)[0], suspends(gpu.wait(6))[0]
    assert (again.suspension, again.resource_version) == (first.suspension, first.resource_version)


def test_a_pod_resumes_with_its_whole_grant_when_it_fits() -> None:
    gpu = suspended()
    high = gpu.placement.bind(gpu.high)
    assert suspends(gpu.wait(30)) == [], "another pod has it"
    assert gpu.free()[1] == 500
    grant = gpu.placement.core.book.pods[high.metadata.uid].grant_id
    gpu.placement.gone(high)
    gpu.placement.send(m.ReleaseSeen("n", grant))
    (back,) = suspends(gpu.wait(7))
    assert back.suspension == ""
    assert gpu.free() == (GPU_MIB // 2, 0), "booked before the agent is told"
    (commands,) = only(gpu.annotate(""), m.SendGrant)
    assert commands.grant.suspension is None
    gpu.answer(None)
    assert suspends(gpu.wait(20)) == []


def test_pending_pods_of_higher_priority_are_placed_before_a_pod_resumes() -> None:
    gpu = suspended()
    high = gpu.placement.bind(gpu.high)
    gpu.placement.facts(gpu.slice("next", compute=50, priority=1))
    grant = gpu.placement.core.book.pods[high.metadata.uid].grant_id
    gpu.placement.gone(high)
    gpu.placement.send(m.ReleaseSeen("n", grant))
    assert suspends(gpu.wait(10)) == []


def test_a_cancelled_plan_resumes_its_victims() -> None:
    gpu = SharedGpu()
    _, commands = gpu.propose(gpu.plan())
    gpu.annotate(suspends(commands)[0].suspension)
    gpu.placement.send(m.AbandonAsked("plan", "no more"))
    assert [order.suspension for order in suspends(gpu.wait(7))] == [""]


def test_a_new_leader_books_what_the_node_confirms() -> None:
    gpu = suspended()
    high = gpu.placement.bind(gpu.high)
    after = Placement(build.node("n"), gpu.low, high, term=200, records=((199, ReadyRecord(term=199)),), answer=False)
    after.send(m.InventorySeen(build.inventory("n", gpus=1, strategies=("exclusive", "advisory", "interposer"))))
    after.send(m.SnapshotSeen(after.objects, 0))
    after.send(m.Appended(201))
    assert after.core.book.overbooked() == [], "nothing has been ordered yet"
    suspension = after.core.book.pods[gpu.low.metadata.uid].suspension
    assert suspension is not None
    after.send(
        m.SyncAnswered(
            NodeSyncAnswer(node="n", boot_id="boot-1", term=200, accepted=True, suspension={gpu.grant_id: suspension})
        )
    )
    assert [p.uid for c in only(after.commands, m.SendPatches) for p in c.patches if isinstance(p, TouchPod)] == [
        gpu.low.metadata.uid
    ]
    (room,) = after.core.book.nodes["n"].gpus
    assert room.free_milli == -500, "an order of the earlier leader, to resume, may still come true"
    after.facts(build.newer(gpu.low))
    (room,) = after.core.book.nodes["n"].gpus
    assert room.free_milli == 500
    assert after.core.book.overbooked() == []


def test_an_annotation_removed_by_a_late_order_is_restored() -> None:
    gpu = suspended()
    gpu.placement.bind(gpu.high)
    suspension = gpu.placement.core.book.pods[gpu.low.metadata.uid].suspension
    commands = gpu.annotate("")
    assert [decode_suspension(order.suspension) for order in suspends(commands)] == [suspension]
    assert only(commands, m.SendGrant) == [], "its node is not told to give back"
    assert gpu.placement.core.book.overbooked() == []


@pytest.mark.parametrize("strategy", ["advisory", "exclusive"])
def test_a_plan_that_suspends_unsupported_slices_is_refused(strategy: str) -> None:
    placement = Placement().nodes("n", gpus=1)
    low = build.gpu_pod("low", **({"memory": "1Gi"} if strategy == "advisory" else {"gpus": 1}))
    placement.facts(low)
    placement.bind(low)
    high = build.gpu_pod("high", gpus=1, priority=100)
    placement.facts(high)
    state = placement.core.book.pods[low.metadata.uid]
    victim = Victim(uid=low.metadata.uid, namespace="team", name="low", grant_id=state.grant_id, action="pause")
    plan = Plan(
        plan_id="plan",
        beneficiaries=(Beneficiary(uid=high.metadata.uid, namespace="team", name="high", node="n"),),
        victims=(victim,),
        deadline_s=60,
    )
    answer = only(placement.send(m.ReserveAsked(plan)), m.AnswerPlan)[-1].answer
    assert not answer.ok
    assert "cannot pause" in answer.reason


def test_an_unreadable_annotation_suspends_no_pod() -> None:
    gpu = SharedGpu()
    gpu.annotate("{}")
    assert gpu.placement.core.book.pods[gpu.low.metadata.uid].suspension is None
    gpu.annotate(encode_suspension(Suspension(action="pause", plan_id="x")))
    assert gpu.placement.core.book.pods[gpu.low.metadata.uid].suspension is not None


def test_a_resumption_seen_in_a_snapshot_reaches_the_agent() -> None:
    """The feed had a gap: the changes within it arrive at once, not pod by pod."""
    gpu = suspended()
    high = gpu.placement.bind(gpu.high)
    grant = gpu.placement.core.book.pods[high.metadata.uid].grant_id
    gpu.placement.gone(high)
    gpu.placement.send(m.ReleaseSeen("n", grant))
    (back,) = suspends(gpu.wait(7))
    assert back.suspension == ""
    gpu.low = build.newer(
        gpu.low,
        annotations={k: v for k, v in gpu.low.metadata.annotations.items() if k != names.ANNOTATION_SUSPENDED},
    )
    (commands,) = only(gpu.placement.send(m.SnapshotSeen(build.put(build.node("n"), gpu.low), 0)), m.SendGrant)
    assert (commands.grant.uid, commands.grant.suspension) == (gpu.low.metadata.uid, None)


def test_a_late_confirmation_of_suspending_does_not_confirm_resuming() -> None:
    """Otherwise a pod whose agent missed the second order stays suspended until another leader starts."""
    gpu = suspended()
    suspension = gpu.placement.core.book.pods[gpu.low.metadata.uid].suspension
    gpu.placement.answer = False
    gpu.placement.gone(gpu.high)
    (back,) = suspends(gpu.wait(7))
    assert back.suspension == ""
    gpu.annotate("")
    gpu.answer(suspension)
    said_again = [c.grant for c in only(gpu.wait(5), m.SendGrant) if c.grant.uid == gpu.low.metadata.uid]
    assert {grant.suspension for grant in said_again} == {None}
    gpu.answer(None)
    assert [c for c in only(gpu.wait(5), m.SendGrant) if c.grant.uid == gpu.low.metadata.uid] == []


def test_foreign_memory_use_keeps_no_pod_suspended_that_needs_no_memory() -> None:
    """A paused pod has kept its memory: foreign memory use beyond the rest does not affect it."""
    gpu = suspended()
    inventory = build.inventory("n", gpus=1, strategies=("exclusive", "advisory", "interposer"), generation=2)
    gpu.placement.send(
        m.InventorySeen(
            msgspec.structs.replace(
                inventory, gpus=(msgspec.structs.replace(inventory.gpus[0], foreign_mib=GPU_MIB // 2 + 1),)
            )
        )
    )
    gpu.placement.gone(gpu.high)
    assert gpu.free()[0] < 0
    assert [order.suspension for order in suspends(gpu.wait(7))] == [""]


def test_a_pod_resumes_before_pods_that_could_not_preempt_it() -> None:
    """However many pods are pending: it ran first and has work to lose."""
    gpu = suspended()
    high = gpu.placement.bind(gpu.high)
    grant = gpu.placement.core.book.pods[high.metadata.uid].grant_id
    rivals = [gpu.slice(f"next{i}", compute=50, priority=0) for i in range(3)]
    gpu.placement.facts(*rivals)
    gpu.placement.gone(high)
    commands = gpu.placement.send(m.ReleaseSeen("n", grant))
    assert [(order.name, order.suspension) for order in suspends(commands)] == [("low", "")]
    gpu.annotate("")
    assert not {pod.metadata.uid for pod in rivals} & gpu.placement.binds().keys()
    assert gpu.free() == (GPU_MIB // 2, 0)


@pytest.mark.parametrize("able", [True, False])
def test_no_victim_is_evicted_before_all_suspensions_are_confirmed(able: bool) -> None:
    """The node's refusal would cancel the plan, and pods evicted before would have ended for nothing."""
    gpu = SharedGpu()
    gpu.placement.gone(gpu.high)
    gpu.placement.nodes("m", gpus=1, strategies=("exclusive", "advisory", "interposer"), park_mib=PARK_MIB)
    whole = gpu.pods.run(build.gpu_pod("whole", gpus=1))
    notes = {"kerf.dev/isolation": "firm", "kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    highs = [
        build.gpu_pod(f"high{i}", memory=f"{GPU_MIB // 2}Mi", compute=50, priority=100, annotations=notes)
        for i in range(2)
    ]
    gpu.placement.facts(*highs)
    gains = tuple(
        Beneficiary(uid=pod.metadata.uid, namespace="team", name=pod.metadata.name, node=node)
        for pod, node in zip(highs, "nm", strict=True)
    )
    ends = Victim(
        uid=whole.metadata.uid,
        namespace="team",
        name="whole",
        grant_id=gpu.placement.core.book.pods[whole.metadata.uid].grant_id,
    )
    plan = Plan(plan_id="plan", beneficiaries=gains, victims=(*gpu.plan().victims, ends), deadline_s=60)
    commands = gpu.placement.send(m.ReserveAsked(plan))
    assert only(commands, m.AnswerPlan) == [], "it may not be executed yet"
    gpu.annotate(suspends(commands)[0].suspension)
    commands = gpu.answer(
        decode_suspension(suspends(commands)[0].suspension) if able else None, reason="" if able else "no"
    )
    assert [answer.answer.ok for answer in only(commands, m.AnswerPlan)] == [able]


def breakdown(gpu: SharedGpu) -> tuple[int, int, int, int, int]:
    """The memory breakdown as `kerf inspect` shows it.

    Guaranteed, paused, returning, suspended and reserved, in halves of the GPU's memory.
    """
    (shown,) = finish(inspect(gpu.placement.core, InspectQuery(node="n"))).nodes[0].gpus
    amounts = (shown.guaranteed_mib, shown.paused_mib, shown.returning_mib, shown.suspended_mib, shown.reserved_mib)
    return tuple(mib * 2 // GPU_MIB for mib in amounts)  # type: ignore[return-value]


def test_each_part_of_gpu_memory_is_accounted_for_at_any_time() -> None:
    gpu = SharedGpu()
    assert breakdown(gpu) == (1, 0, 0, 0, 0)
    _, commands = gpu.propose(gpu.plan())
    (order,) = suspends(commands)
    assert breakdown(gpu) == (1, 0, 0, 0, 1), "a place is kept, and nothing is given up yet"
    gpu.annotate(order.suspension)
    gpu.answer(decode_suspension(order.suspension))
    assert breakdown(gpu) == (1, 1, 0, 0, 0), "the beneficiary holds its half, the victim is paused with its own"
    high = gpu.placement.bind(gpu.high)
    grant = gpu.placement.core.book.pods[high.metadata.uid].grant_id
    gpu.placement.gone(high)
    gpu.placement.send(m.ReleaseSeen("n", grant))
    assert breakdown(gpu) == (0, 1, 0, 0, 0)
    gpu.wait(7)
    assert breakdown(gpu) == (0, 0, 1, 0, 0)
    gpu.annotate("")
    gpu.answer(None)
    assert breakdown(gpu) == (1, 0, 0, 0, 0)


def test_checkpointed_memory_is_not_on_the_gpu() -> None:
    gpu = SharedGpu()
    _, commands = gpu.propose(gpu.plan("checkpoint"))
    (order,) = suspends(commands)
    gpu.annotate(order.suspension)
    gpu.answer(decode_suspension(order.suspension))
    assert breakdown(gpu) == (1, 0, 0, 1, 0)


def test_the_reason_of_a_reclaiming_suspension_names_the_queue() -> None:
    gpu = SharedGpu()
    gpu.placement.facts(build.queues("queues: [{name: team}, {name: due, guaranteed: {gpus: 1}}]"))
    gpu.high = build.gpu_pod(
        "high",
        memory=f"{GPU_MIB // 2}Mi",
        compute=50,
        labels={"kerf.dev/queue": "due"},
        annotations={"kerf.dev/isolation": "firm"},
    )
    gpu.placement.facts(gpu.high)
    answer, commands = gpu.propose(gpu.plan())
    assert answer.ok, answer.reason
    assert suspends(commands)[0].reason.startswith("paused for team/high, whose queue reclaims its share; it resumes")


def test_a_suspended_pod_resumes_within_the_limit_of_its_queue() -> None:
    """What it gave up does not count while it is suspended, and its queue may have less by then."""
    gpu = SharedGpu()
    gpu.placement.facts(build.queues("queues: [{name: team, limit: {gpus: 2}}]"))
    _, commands = gpu.propose(gpu.plan())
    (order,) = suspends(commands)
    gpu.annotate(order.suspension)
    gpu.answer(decode_suspension(order.suspension))
    high = gpu.placement.bind(gpu.high)
    grant = gpu.placement.core.book.pods[high.metadata.uid].grant_id
    gpu.placement.facts(build.queues("queues: [{name: team, limit: {gpus: 0.9}}]"))
    gpu.placement.gone(high)
    gpu.placement.send(m.ReleaseSeen("n", grant))
    assert not suspends(gpu.wait(20))
    assert why(gpu.placement, "low").sentence.endswith(
        "automatically when there is capacity and its queue's quota allows it: "
        "team/low would exceed the quota of queue team"
    )
    gpu.placement.facts(build.queues("queues: [{name: team, limit: {gpus: 1}}]"))
    assert {order.suspension for order in suspends(gpu.wait(20))} == {""}


def test_a_suspended_pod_of_a_queue_that_is_gone_resumes() -> None:
    """It counts nowhere any more, as those of its queue that run."""
    gpu = SharedGpu()
    gpu.placement.facts(build.queues("queues: [{name: team, limit: {gpus: 2}}]"))
    _, commands = gpu.propose(gpu.plan())
    (order,) = suspends(commands)
    gpu.annotate(order.suspension)
    gpu.answer(decode_suspension(order.suspension))
    high = gpu.placement.bind(gpu.high)
    grant = gpu.placement.core.book.pods[high.metadata.uid].grant_id
    gpu.placement.facts(build.queues("queues: [{name: another}]"))
    gpu.placement.gone(high)
    gpu.placement.send(m.ReleaseSeen("n", grant))
    assert {order.suspension for order in suspends(gpu.wait(20))} == {""}


def test_of_two_suspended_pods_one_resumes_where_their_queue_may_have_one() -> None:
    site = Site(gpus=2, park=2)
    for long in ("a", "b"):
        site.run(long)
    site.wait(3_600)
    for long, new in (("a", "c"), ("b", "d")):
        site.create(new)
        assert site.propose(site.plan((long,), (new,), plan_id=new)).ok
        site.settle(2)
        site.bind(new)
    site.placement.facts(build.queues("queues: [{name: team, limit: {gpus: 1}}]"))
    for new in ("c", "d"):
        site.end(new)
    site.settle(20)
    assert site.runs() == ["a"]
    site.end("a")
    site.settle(20)
    assert site.runs() == ["b"]


def test_why_says_what_a_suspended_pod_has_given_up() -> None:
    gpu = SharedGpu()
    _, commands = gpu.propose(gpu.plan("throttle", keeps_milli=100))
    gpu.annotate(suspends(commands)[0].suspension)
    assert (
        "it is to give up compute (throttle: it keeps 10 % of each of its GPUs) for plan plan"
        in why(gpu.placement, "low").sentence
    )
    gpu.answer(decode_suspension(suspends(commands)[0].suspension))
    high = gpu.placement.bind(gpu.high)
    sentence = why(gpu.placement, "low").sentence
    assert sentence.endswith(
        "; it has given up compute (throttle: it keeps 10 % of each of its GPUs) for plan plan, "
        "and gets it back automatically when there is capacity"
    )
    grant = gpu.placement.core.book.pods[high.metadata.uid].grant_id
    gpu.placement.gone(high)
    gpu.placement.send(m.ReleaseSeen("n", grant))
    gpu.wait(7)
    assert why(gpu.placement, "low").sentence.endswith("; it takes back what it gave up (throttle, plan plan)")
    gpu.annotate("")
    assert "give" not in why(gpu.placement, "low").sentence
