"""Suspension and resumption: what is booked when, and what a new leader does."""

from __future__ import annotations

import msgspec
import pytest

from services.placement import messages as m
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
from tests.support.leader import Leader, only
from tests.support.whatif import why

GPU_MIB = 81_920


class World:
    """One GPU of a node that enforces slices.

    A slice of half its memory and all its compute runs; one that needs half of both is pending.
    """

    def __init__(self) -> None:
        self.leader = Leader().nodes("n", gpus=1, strategies=("exclusive", "advisory", "interposer"))
        self.low = self.run(self.slice("low", compute=100))
        self.high = self.slice("high", compute=50, priority=100)
        self.leader.facts(self.high)
        assert self.high.metadata.uid not in self.leader.binds()

    @staticmethod
    def slice(name: str, *, compute: int, priority: int = 0) -> Pod:
        return build.gpu_pod(
            name,
            memory=f"{GPU_MIB // 2}Mi",
            compute=compute,
            priority=priority,
            annotations={"kerf.dev/isolation": "firm"},
        )

    def run(self, pod: Pod) -> Pod:
        self.leader.facts(pod)
        return self.leader.bind(pod)

    @property
    def grant_id(self) -> str:
        return self.leader.core.book.pods[self.low.metadata.uid].grant_id

    def plan(self, action: Action = "pause", keeps_milli: int = 0) -> Plan:
        gains = Beneficiary(uid=self.high.metadata.uid, namespace="team", name="high", node="n")
        victim = Victim(
            uid=self.low.metadata.uid,
            namespace="team",
            name="low",
            grant_id=self.grant_id,
            action=action,
            keeps_milli=keeps_milli,
        )
        return Plan(plan_id="plan", beneficiaries=(gains,), victims=(victim,), deadline_s=60)

    def ask(self, plan: Plan) -> tuple[Reserved, list[m.Command]]:
        said = self.leader.send(m.ReserveAsked(plan))
        return only(said, m.AnswerPlan)[-1].answer, said

    def annotate(self, suspension: str) -> list[m.Command]:
        """Applies a SuspendPod as the watcher does."""
        notes = {k: v for k, v in self.low.metadata.annotations.items() if k != names.ANNOTATION_SUSPENDED} | (
            {names.ANNOTATION_SUSPENDED: suspension} if suspension else {}
        )
        meta = msgspec.structs.replace(self.low.metadata, resource_version=build.next_version(), annotations=notes)
        self.low = msgspec.structs.replace(self.low, metadata=meta)
        return self.leader.send(m.FactsSeen((Put(object=self.low),)))

    def answer(self, suspension: Suspension | None, reason: str = "") -> list[m.Command]:
        return self.leader.send(m.GrantAcknowledged("n", self.grant_id, reason=reason, suspension=suspension))

    def free(self) -> tuple[int, int]:
        (room,) = self.leader.core.book.nodes["n"].gpus
        return room.free_mib, room.free_milli

    def later(self, seconds: float) -> list[m.Command]:
        said: list[m.Command] = []
        for _ in range(round(seconds)):
            self.leader.now += 1
            said += self.leader.send(m.BeatSeen(("n",))) + self.leader.send(m.Tick())
        return said


def suspends(said: list[m.Command]) -> list[SuspendPod]:
    return [p for c in only(said, m.SendPatches) for p in c.patches if isinstance(p, SuspendPod)]


def suspension_world() -> World:
    """Runs the plan until the beneficiary is placed."""
    world = World()
    _, said = world.ask(world.plan())
    (order,) = suspends(said)
    world.annotate(order.suspension)
    world.answer(decode_suspension(order.suspension))
    return world


def test_a_suspension_is_ordered_when_logged_and_booked_when_confirmed() -> None:
    world = World()
    answer, said = world.ask(world.plan("throttle", keeps_milli=100))
    assert answer.ok
    (order,) = suspends(said)
    assert decode_suspension(order.suspension) == Suspension(action="throttle", plan_id="plan", compute_milli=100)
    assert "makes room" not in order.reason
    assert "team/high" in order.reason
    (told,) = [c for c in only(world.annotate(order.suspension), m.SendGrant) if c.grant.uid == world.low.metadata.uid]
    assert told.grant.suspension == decode_suspension(order.suspension)
    assert world.high.metadata.uid not in world.leader.binds(), "nothing is free before the node confirms"
    world.answer(told.grant.suspension)
    assert world.high.metadata.uid in world.leader.binds()
    assert world.leader.core.book.overbooked() == []
    assert world.free()[1] == 1000 - 100 - 500


def test_a_late_answer_to_another_order_books_nothing() -> None:
    world = World()
    _, said = world.ask(world.plan())
    world.annotate(suspends(said)[0].suspension)
    world.answer(Suspension(action="pause", plan_id="another"))
    world.answer(None)
    assert world.high.metadata.uid not in world.leader.binds()


def test_an_order_that_the_node_cannot_execute_is_withdrawn() -> None:
    world = World()
    _, said = world.ask(world.plan())
    world.annotate(suspends(said)[0].suspension)
    said = world.answer(None, reason="its page cannot be written")
    (back,) = suspends(said)
    assert (back.suspension, "its page cannot be written" in back.reason) == ("", True)
    (abandoned,) = [c.event for c in only(said, m.Publish) if isinstance(c.event, PreemptionAbandoned)]
    assert "its page cannot be written" in abandoned.reason
    assert world.leader.core.preemption.reservations == {}


def test_a_lost_order_is_repeated() -> None:
    world = World()
    _, said = world.ask(world.plan())
    assert len(suspends(said)) == 1
    assert suspends(world.later(6))[0] == suspends(said)[0]


def test_a_pod_resumes_with_its_whole_grant_when_it_fits() -> None:
    world = suspension_world()
    high = world.leader.bind(world.high)
    assert suspends(world.later(30)) == [], "another pod has it"
    assert world.free()[1] == 500
    grant = world.leader.core.book.pods[high.metadata.uid].grant_id
    world.leader.gone(high)
    world.leader.send(m.ReleaseSeen("n", grant))
    (back,) = suspends(world.later(7))
    assert back.suspension == ""
    assert world.free() == (GPU_MIB // 2, 0), "booked before the agent is told"
    (told,) = only(world.annotate(""), m.SendGrant)
    assert told.grant.suspension is None
    world.answer(None)
    assert suspends(world.later(20)) == []


def test_pending_pods_of_higher_priority_are_placed_before_a_pod_resumes() -> None:
    world = suspension_world()
    high = world.leader.bind(world.high)
    world.leader.facts(world.slice("next", compute=50, priority=1))
    grant = world.leader.core.book.pods[high.metadata.uid].grant_id
    world.leader.gone(high)
    world.leader.send(m.ReleaseSeen("n", grant))
    assert suspends(world.later(10)) == []


def test_a_cancelled_plan_resumes_its_victims() -> None:
    world = World()
    _, said = world.ask(world.plan())
    world.annotate(suspends(said)[0].suspension)
    world.leader.send(m.AbandonAsked("plan", "no more"))
    assert [order.suspension for order in suspends(world.later(7))] == [""]


def test_a_new_leader_books_what_the_node_confirms() -> None:
    world = suspension_world()
    high = world.leader.bind(world.high)
    after = Leader(build.node("n"), world.low, high, term=200, records=((199, ReadyRecord(term=199)),), answer=False)
    after.send(m.InventorySeen(build.inventory("n", gpus=1, strategies=("exclusive", "advisory", "interposer"))))
    after.send(m.SnapshotSeen(after.objects, 0))
    after.send(m.Appended(201))
    assert after.core.book.overbooked() == [], "nothing has been ordered yet"
    suspension = after.core.book.pods[world.low.metadata.uid].suspension
    assert suspension is not None
    after.send(
        m.SyncAnswered(
            NodeSyncAnswer(node="n", boot_id="boot-1", term=200, accepted=True, suspension={world.grant_id: suspension})
        )
    )
    assert [p.uid for c in only(after.said, m.SendPatches) for p in c.patches if isinstance(p, TouchPod)] == [
        world.low.metadata.uid
    ]
    (room,) = after.core.book.nodes["n"].gpus
    assert room.free_milli == -500, "an order of the earlier leader, to resume, may still come true"
    after.facts(build.newer(world.low))
    (room,) = after.core.book.nodes["n"].gpus
    assert room.free_milli == 500
    assert after.core.book.overbooked() == []


def test_an_annotation_removed_by_a_late_order_is_restored() -> None:
    world = suspension_world()
    world.leader.bind(world.high)
    suspension = world.leader.core.book.pods[world.low.metadata.uid].suspension
    said = world.annotate("")
    assert [decode_suspension(order.suspension) for order in suspends(said)] == [suspension]
    assert only(said, m.SendGrant) == [], "its node is not told to give back"
    assert world.leader.core.book.overbooked() == []


@pytest.mark.parametrize("strategy", ["advisory", "exclusive"])
def test_a_plan_that_suspends_unsupported_slices_is_refused(strategy: str) -> None:
    leader = Leader().nodes("n", gpus=1)
    low = build.gpu_pod("low", **({"memory": "1Gi"} if strategy == "advisory" else {"gpus": 1}))
    leader.facts(low)
    leader.bind(low)
    high = build.gpu_pod("high", gpus=1, priority=100)
    leader.facts(high)
    state = leader.core.book.pods[low.metadata.uid]
    victim = Victim(uid=low.metadata.uid, namespace="team", name="low", grant_id=state.grant_id, action="pause")
    plan = Plan(
        plan_id="plan",
        beneficiaries=(Beneficiary(uid=high.metadata.uid, namespace="team", name="high", node="n"),),
        victims=(victim,),
        deadline_s=60,
    )
    answer = only(leader.send(m.ReserveAsked(plan)), m.AnswerPlan)[-1].answer
    assert not answer.ok
    assert "cannot pause" in answer.reason


def test_an_unreadable_annotation_suspends_no_pod() -> None:
    world = World()
    world.annotate("{}")
    assert world.leader.core.book.pods[world.low.metadata.uid].suspension is None
    world.annotate(encode_suspension(Suspension(action="pause", plan_id="x")))
    assert world.leader.core.book.pods[world.low.metadata.uid].suspension is not None


def test_a_resumption_seen_in_a_snapshot_reaches_the_agent() -> None:
    """The feed had a gap: the changes within it arrive at once, not pod by pod."""
    world = suspension_world()
    high = world.leader.bind(world.high)
    grant = world.leader.core.book.pods[high.metadata.uid].grant_id
    world.leader.gone(high)
    world.leader.send(m.ReleaseSeen("n", grant))
    (back,) = suspends(world.later(7))
    assert back.suspension == ""
    world.low = build.newer(
        world.low,
        annotations={k: v for k, v in world.low.metadata.annotations.items() if k != names.ANNOTATION_SUSPENDED},
    )
    (told,) = only(world.leader.send(m.SnapshotSeen(build.put(build.node("n"), world.low), 0)), m.SendGrant)
    assert (told.grant.uid, told.grant.suspension) == (world.low.metadata.uid, None)


def test_a_late_confirmation_of_suspending_does_not_confirm_resuming() -> None:
    """Otherwise a pod whose agent missed the second order stays suspended until another leader starts."""
    world = suspension_world()
    suspension = world.leader.core.book.pods[world.low.metadata.uid].suspension
    world.leader.answer = False
    world.leader.gone(world.high)
    (back,) = suspends(world.later(7))
    assert back.suspension == ""
    world.annotate("")
    world.answer(suspension)
    said_again = [c.grant for c in only(world.later(5), m.SendGrant) if c.grant.uid == world.low.metadata.uid]
    assert {grant.suspension for grant in said_again} == {None}
    world.answer(None)
    assert [c for c in only(world.later(5), m.SendGrant) if c.grant.uid == world.low.metadata.uid] == []


def test_foreign_memory_use_keeps_no_pod_suspended_that_needs_no_memory() -> None:
    """A paused pod has kept its memory: foreign memory use beyond the rest does not affect it."""
    world = suspension_world()
    inventory = build.inventory("n", gpus=1, strategies=("exclusive", "advisory", "interposer"), generation=2)
    world.leader.send(
        m.InventorySeen(
            msgspec.structs.replace(
                inventory, gpus=(msgspec.structs.replace(inventory.gpus[0], foreign_mib=GPU_MIB // 2 + 1),)
            )
        )
    )
    world.leader.gone(world.high)
    assert world.free()[0] < 0
    assert [order.suspension for order in suspends(world.later(7))] == [""]


def test_a_pod_resumes_before_pods_that_could_not_preempt_it() -> None:
    """However many pods are pending: it ran first and has work to lose."""
    world = suspension_world()
    high = world.leader.bind(world.high)
    grant = world.leader.core.book.pods[high.metadata.uid].grant_id
    rivals = [world.slice(f"next{i}", compute=50, priority=0) for i in range(3)]
    world.leader.facts(*rivals)
    world.leader.gone(high)
    said = world.leader.send(m.ReleaseSeen("n", grant))
    assert [(order.name, order.suspension) for order in suspends(said)] == [("low", "")]
    world.annotate("")
    assert not {pod.metadata.uid for pod in rivals} & world.leader.binds().keys()
    assert world.free() == (GPU_MIB // 2, 0)


@pytest.mark.parametrize("able", [True, False])
def test_no_victim_is_evicted_before_all_suspensions_are_confirmed(able: bool) -> None:
    """The node's refusal would cancel the plan, and pods evicted before would have ended for nothing."""
    world = World()
    world.leader.gone(world.high)
    world.leader.nodes("m", gpus=1, strategies=("exclusive", "advisory", "interposer"))
    whole = world.run(build.gpu_pod("whole", gpus=1))
    notes = {"kerf.dev/isolation": "firm", "kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    highs = [
        build.gpu_pod(f"high{i}", memory=f"{GPU_MIB // 2}Mi", compute=50, priority=100, annotations=notes)
        for i in range(2)
    ]
    world.leader.facts(*highs)
    gains = tuple(
        Beneficiary(uid=pod.metadata.uid, namespace="team", name=pod.metadata.name, node=node)
        for pod, node in zip(highs, "nm", strict=True)
    )
    ends = Victim(
        uid=whole.metadata.uid,
        namespace="team",
        name="whole",
        grant_id=world.leader.core.book.pods[whole.metadata.uid].grant_id,
    )
    plan = Plan(plan_id="plan", beneficiaries=gains, victims=(*world.plan().victims, ends), deadline_s=60)
    said = world.leader.send(m.ReserveAsked(plan))
    assert only(said, m.AnswerPlan) == [], "it may not be executed yet"
    world.annotate(suspends(said)[0].suspension)
    said = world.answer(decode_suspension(suspends(said)[0].suspension) if able else None, reason="" if able else "no")
    assert [answer.answer.ok for answer in only(said, m.AnswerPlan)] == [able]


def columns(world: World) -> tuple[int, int, int, int, int]:
    """The memory breakdown as `kerf inspect` shows it.

    Guaranteed, paused, returning, suspended and reserved, in halves of the GPU's memory.
    """
    (gpu,) = inspect(world.leader.core, InspectQuery(node="n")).nodes[0].gpus
    amounts = (gpu.guaranteed_mib, gpu.paused_mib, gpu.returning_mib, gpu.suspended_mib, gpu.reserved_mib)
    return tuple(mib * 2 // GPU_MIB for mib in amounts)  # type: ignore[return-value]


def test_each_part_of_gpu_memory_is_accounted_for_at_any_time() -> None:
    world = World()
    assert columns(world) == (1, 0, 0, 0, 0)
    _, said = world.ask(world.plan())
    (order,) = suspends(said)
    assert columns(world) == (1, 0, 0, 0, 1), "a place is kept, and nothing is given up yet"
    world.annotate(order.suspension)
    world.answer(decode_suspension(order.suspension))
    assert columns(world) == (1, 1, 0, 0, 0), "the beneficiary holds its half, the victim is paused with its own"
    high = world.leader.bind(world.high)
    grant = world.leader.core.book.pods[high.metadata.uid].grant_id
    world.leader.gone(high)
    world.leader.send(m.ReleaseSeen("n", grant))
    assert columns(world) == (0, 1, 0, 0, 0)
    world.later(7)
    assert columns(world) == (0, 0, 1, 0, 0)
    world.annotate("")
    world.answer(None)
    assert columns(world) == (1, 0, 0, 0, 0)


def test_checkpointed_memory_is_not_on_the_gpu() -> None:
    world = World()
    _, said = world.ask(world.plan("checkpoint"))
    (order,) = suspends(said)
    world.annotate(order.suspension)
    world.answer(decode_suspension(order.suspension))
    assert columns(world) == (1, 0, 0, 1, 0)


def test_the_reason_of_a_reclaiming_suspension_names_the_queue() -> None:
    world = World()
    world.leader.facts(build.queues("queues: [{name: team}, {name: due, guaranteed: {gpus: 1}}]"))
    world.high = build.gpu_pod(
        "high",
        memory=f"{GPU_MIB // 2}Mi",
        compute=50,
        labels={"kerf.dev/queue": "due"},
        annotations={"kerf.dev/isolation": "firm"},
    )
    world.leader.facts(world.high)
    answer, said = world.ask(world.plan())
    assert answer.ok, answer.reason
    assert suspends(said)[0].reason.startswith("paused for team/high, whose queue reclaims its share; it resumes")


def test_why_says_what_a_suspended_pod_has_given_up() -> None:
    world = World()
    _, said = world.ask(world.plan("throttle", keeps_milli=100))
    world.annotate(suspends(said)[0].suspension)
    assert (
        "it is to give up compute (throttle: it keeps 10 % of each of its GPUs) for plan plan"
        in why(world.leader, "low").sentence
    )
    world.answer(decode_suspension(suspends(said)[0].suspension))
    high = world.leader.bind(world.high)
    sentence = why(world.leader, "low").sentence
    assert sentence.endswith(
        "; it has given up compute (throttle: it keeps 10 % of each of its GPUs) for plan plan, "
        "and gets it back automatically when there is capacity"
    )
    grant = world.leader.core.book.pods[high.metadata.uid].grant_id
    world.leader.gone(high)
    world.leader.send(m.ReleaseSeen("n", grant))
    world.later(7)
    assert why(world.leader, "low").sentence.endswith("; it takes back what it gave up (throttle, plan plan)")
    world.annotate("")
    assert "give" not in why(world.leader, "low").sentence
