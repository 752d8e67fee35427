"""What placement writes for autoscalers, by its own core: amounts, the taint, nominations, reasons of conditions."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pytest

from services.placement import messages as m
from services.placement.autoscaling.advertising import AGAIN_S, TURN_S
from services.placement.autoscaling.no_room import HOLD_S, IN_PART_HOLD_S, TROUBLE_HOLD_S, WRITES_AT_ONCE, NoRoom
from services.placement.autoscaling.nominations import AGAIN_S as NOMINATE_AGAIN_S
from services.placement.autoscaling.nominations import Nominations
from services.placement.explain.pending_reasons import SAY_AGAIN_S
from shared.book.advertised import advertised
from shared.book.book import Book
from shared.book.states import pod_state
from shared.contracts.commands import AdvertiseCapacity, NominateNode, Patch, ReportPending, TaintNode
from shared.contracts.facts import Put
from shared.model.kube_object import Meta
from shared.model.names import TAINT_NO_ROOM
from shared.model.objects import Condition, Gang, Node, Pod, SchedulingGroup, Taint
from tests.support import build
from tests.support.harness.placement import Placement

P = TypeVar("P", bound=Patch)
ENROLLED = {"kerf.dev/enrolled": "true"}
AMOUNTS = {name: str(amount) for name, amount in advertised(build.inventory(gpus=2), 80 << 30).items()}


def patches(placement: Placement, kind: type[P]) -> list[P]:
    return [p for p in placement.patches() if isinstance(p, kind)]


def advertising_node(*, tainted: bool = False, **amounts: str) -> Node:
    taints = (Taint(key=TAINT_NO_ROOM, effect="NoSchedule"),) if tainted else ()
    return build.node("n", labels=ENROLLED, taints=taints, **(AMOUNTS | amounts))


def cluster(**config: object) -> Placement:
    """One node of two GPUs."""
    placement = Placement(**config)
    placement.facts(advertising_node())
    placement.send(m.InventorySeen(build.inventory("n", gpus=2)))
    return placement


def look(placement: Placement, seconds: float = 2 * HOLD_S) -> None:
    for _ in range(int(seconds)):
        placement.send(m.BeatSeen(("n",)))
        placement.tick(1.0)


def test_a_node_is_asked_to_advertise_until_it_does_and_again_when_a_kubelet_zeroes_it() -> None:
    placement = Placement()
    placement.facts(build.node("n", labels=ENROLLED))
    placement.send(m.InventorySeen(build.inventory("n", gpus=2)))
    placement.tick()
    placement.tick(AGAIN_S / 2)
    asked = patches(placement, AdvertiseCapacity)
    assert [(p.node, {k: str(v) for k, v in p.amounts.items()}) for p in asked] == [("n", AMOUNTS)]
    placement.facts(advertising_node())
    placement.tick(2 * AGAIN_S)
    assert len(patches(placement, AdvertiseCapacity)) == 1
    placement.facts(advertising_node(**{"kerf.dev/gpu-compute": "0"}))
    placement.tick(TURN_S)
    assert len(patches(placement, AdvertiseCapacity)) == 2


def test_nodes_that_are_not_enrolled_advertise_nothing() -> None:
    placement = Placement().nodes("n")
    look(placement)
    assert patches(placement, AdvertiseCapacity) == []


def test_a_node_that_has_left_or_has_no_healthy_gpu_advertises_nothing_any_more() -> None:
    """Autoscalers and Kueue would go on counting it."""
    zero = dict.fromkeys(AMOUNTS, 0)
    placement = cluster()
    left = advertising_node()
    placement.facts(msgspec.structs.replace(left, metadata=build.node("n").metadata))
    placement.tick()
    assert [p.amounts for p in patches(placement, AdvertiseCapacity)] == [zero]
    broken = cluster()
    broken.send(m.InventorySeen(build.inventory("n", gpus=2, generation=2, states={0: "suspect", 1: "suspect"})))
    broken.tick()
    assert [p.amounts for p in patches(broken, AdvertiseCapacity)] == [zero]


def test_a_node_that_only_looks_free_to_a_waiting_pod_is_tainted() -> None:
    """Two GPUs with 40 % left each: 80 % in sum, and no place for 60 %."""
    placement = cluster(autoscaler=True)
    for name in ("a", "b"):
        pod = build.gpu_pod(name, compute=60)
        placement.facts(pod)
        placement.bind(pod)
    placement.facts(build.gpu_pod("c", compute=60))
    placement.tick(1.0)
    assert patches(placement, TaintNode) == [], "it has not looked free for long enough"
    look(placement)
    assert set(patches(placement, TaintNode)) == {TaintNode(node="n", key=TAINT_NO_ROOM, present=True)}


def test_a_node_that_has_room_for_a_part_of_a_gang_is_not_tainted_before_nodes_for_the_rest_can_have_come() -> None:
    """By sums an autoscaler starts nodes for the other pods; with the taint it would start them for all."""
    placement = cluster(autoscaler=True)
    used = build.gpu_pod("used", compute=100)
    placement.facts(used)
    placement.bind(used)
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    gang = [build.gpu_pod(name, compute=100, annotations=notes) for name in ("a", "b")]
    placement.facts(*gang)
    look(placement, IN_PART_HOLD_S - 5)
    assert patches(placement, TaintNode) == []
    look(placement, 10)
    assert set(patches(placement, TaintNode)) == {TaintNode(node="n", key=TAINT_NO_ROOM, present=True)}
    placement.commands.clear()
    placement.facts(advertising_node(tainted=True))
    placement.gone(gang[0])
    look(placement)
    assert set(patches(placement, TaintNode)) == {TaintNode(node="n", key=TAINT_NO_ROOM, present=False)}


def test_a_node_without_room_for_any_pod_of_a_gang_is_tainted_as_for_a_single_pod() -> None:
    placement = cluster(autoscaler=True)
    for name in ("a", "b"):
        pod = build.gpu_pod(name, compute=60)
        placement.facts(pod)
        placement.bind(pod)
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    placement.facts(*(build.gpu_pod(name, compute=60, annotations=notes) for name in ("c", "d")))
    look(placement)
    assert set(patches(placement, TaintNode)) == {TaintNode(node="n", key=TAINT_NO_ROOM, present=True)}


def test_a_node_that_is_full_in_sum_needs_no_taint() -> None:
    placement = cluster(autoscaler=True)
    for name in ("a", "b"):
        pod = build.gpu_pod(name, compute=100)
        placement.facts(pod)
        placement.bind(pod)
    placement.facts(build.gpu_pod("c", compute=60))
    look(placement)
    assert patches(placement, TaintNode) == []


def test_the_taint_goes_when_no_pod_waits_for_the_node_and_never_keeps_off_a_pod_of_ours() -> None:
    placement = cluster(autoscaler=True)
    placement.facts(advertising_node(tainted=True))
    look(placement)
    assert set(patches(placement, TaintNode)) == {TaintNode(node="n", key=TAINT_NO_ROOM, present=False)}
    assert placement.place(build.gpu_pod("p", compute=60)) == {"p": "n"}


def test_a_node_whose_agent_restarts_is_not_tainted_for_that() -> None:
    """The pods fit when it is back, within seconds."""
    placement = cluster(autoscaler=True)
    placement.core.book.set_agent_trouble("n", "its agent has been silent")
    placement.facts(build.gpu_pod("c", compute=60))
    for _ in range(20):
        placement.tick(1.0)
    assert patches(placement, TaintNode) == []
    for _ in range(int(TROUBLE_HOLD_S)):
        placement.tick(1.0)
    assert set(patches(placement, TaintNode)) == {TaintNode(node="n", key=TAINT_NO_ROOM, present=True)}


@pytest.mark.parametrize(
    "pod",
    [
        build.gpu_pod("c", compute=60, annotations={"kerf.dev/gpu-model": "B200"}),
        build.gpu_pod("c", memory="100Gi"),
        build.gpu_pod("c", compute=60, annotations={"kerf.dev/gpu-uuid": "GPU-elsewhere"}),
    ],
    ids=["another model", "more than a GPU has", "another GPU by its UUID"],
)
def test_no_node_is_tainted_for_a_pod_that_more_such_nodes_would_not_help(pod: Pod) -> None:
    """Or an autoscaler starts one node after the other for ever: the pod fits on none, and each is tainted then."""
    placement = cluster(autoscaler=True)
    used = build.gpu_pod("a", compute=10)
    placement.facts(used)
    placement.bind(used)
    placement.facts(pod)
    look(placement)
    assert {(report.name, report.reason) for report in patches(placement, ReportPending)} == {("c", "Unschedulable")}
    assert patches(placement, TaintNode) == []


def test_a_node_on_which_nothing_runs_is_not_tainted_while_its_agent_answers() -> None:
    """A new node would be no better: here no strategy of the node isolates as the pod asks."""
    placement = cluster(autoscaler=True)
    placement.facts(build.gpu_pod("c", compute=60, annotations={"kerf.dev/isolation": "hard"}))
    look(placement)
    assert {(report.name, report.reason) for report in patches(placement, ReportPending)} == {("c", "Unschedulable")}
    assert patches(placement, TaintNode) == []


def test_few_nodes_are_tainted_at_once() -> None:
    """One pod can make all nodes of a cluster look free."""
    book, waiting = Book(), [pod_state(build.gpu_pod("c", compute=60))]
    for i in range(3 * WRITES_AT_ONCE):
        book.apply(
            Put(
                object=msgspec.structs.replace(
                    advertising_node(), metadata=build.node(f"n{i}", labels=ENROLLED).metadata
                )
            )
        )
        book.set_agent_trouble(f"n{i}", "its agent has been silent")
    no_room = NoRoom(book, lambda: waiting)
    written = [no_room.due(now) for now in (0.0, *(TROUBLE_HOLD_S + 1 + i for i in range(3)))]
    assert [len(orders) for orders in written] == [0, *(WRITES_AT_ONCE,) * 3]
    assert len({order.node for orders in written for order in orders}) == 3 * WRITES_AT_ONCE


def test_a_node_that_has_left_kerf_loses_the_taint() -> None:
    """Its amounts are still in its status, and other schedulers use it now."""
    placement = cluster(autoscaler=True)
    for name in ("a", "b"):
        pod = build.gpu_pod(name, compute=60)
        placement.facts(pod)
        placement.bind(pod)
    left = advertising_node(tainted=True)
    placement.facts(msgspec.structs.replace(left, metadata=msgspec.structs.replace(left.metadata, labels={})))
    placement.facts(build.gpu_pod("c", compute=60))
    look(placement)
    assert set(patches(placement, TaintNode)) == {TaintNode(node="n", key=TAINT_NO_ROOM, present=False)}


def test_the_taint_goes_when_the_setting_is_switched_off() -> None:
    placement = cluster()
    placement.facts(advertising_node(tainted=True))
    look(placement)
    assert set(patches(placement, TaintNode)) == {TaintNode(node="n", key=TAINT_NO_ROOM, present=False)}


def test_a_pod_with_amounts_that_are_none_does_not_stop_placement() -> None:
    placement = cluster(autoscaler=True)
    for name in ("a", "b"):
        pod = build.gpu_pod(name, compute=60)
        placement.facts(pod)
        placement.bind(pod)
    placement.facts(build.bound(build.pod("bad", limits={"kerf.dev/gpu-memory": "sixteen"}), "n"))
    placement.facts(build.gpu_pod("c", compute=60))
    look(placement)
    assert set(patches(placement, TaintNode)) == {TaintNode(node="n", key=TAINT_NO_ROOM, present=True)}


def test_without_an_autoscaler_no_node_is_tainted() -> None:
    placement = cluster()
    for name in ("a", "b"):
        pod = build.gpu_pod(name, compute=60)
        placement.facts(pod)
        placement.bind(pod)
    placement.facts(build.gpu_pod("c", compute=60))
    look(placement)
    assert patches(placement, TaintNode) == []


def test_a_gang_that_lacks_pods_asks_for_no_node() -> None:
    """Its condition has a reason of its own, for autoscalers start nodes for Unschedulable."""
    placement = cluster(autoscaler=True)
    gang = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3"}
    placement.facts(build.gpu_pod("a", compute=60, annotations=gang))
    look(placement)
    assert patches(placement, TaintNode) == []
    assert {report.reason for report in patches(placement, ReportPending)} == {"GangIncomplete"}


def test_pods_over_quota_and_pods_that_are_refused_have_other_reasons_than_those_without_capacity() -> None:
    placement = cluster(autoscaler=True)
    placement.facts(build.queues("queues: [{name: q, limit: {gpus: 1}}]"))
    queue = {"kerf.dev/queue": "q"}
    placement.facts(
        build.gpu_pod("over", gpus=2, labels=queue), build.pod("bad", limits={"kerf.dev/gpu-memory": "sixteen"})
    )
    look(placement)
    reasons = {report.name: report.reason for report in patches(placement, ReportPending)}
    assert reasons == {"over": "QuotaExceeded", "bad": "Refused"}
    assert patches(placement, TaintNode) == []


def test_a_pod_for_which_a_plan_makes_room_is_nominated_until_the_plan_ends() -> None:
    placement = cluster()
    pod = build.gpu_pod("p", gpus=4)
    placement.facts(pod)
    book, plans = placement.core.book, {pod.metadata.uid: "n"}
    nominations = Nominations(book, lambda: plans, lambda: [pod.metadata.uid], ())
    assert [(p.name, p.node) for p in nominations.due(0.0)] == [("p", "n")]
    assert nominations.due(NOMINATE_AGAIN_S / 2) == [], "it may not be seen yet"
    status = msgspec.structs.replace(pod.status, nominated_node_name="n")
    seen = msgspec.structs.replace(build.newer(pod), status=status)
    placement.facts(seen)
    assert nominations.due(2 * NOMINATE_AGAIN_S) == []
    plans.clear()
    assert [p.node for p in nominations.due(4 * NOMINATE_AGAIN_S)] == [""]
    later: list[NominateNode] = Nominations(book, dict, lambda: [pod.metadata.uid], ()).due(0.0)
    assert [p.node for p in later] == [""], "a nomination of an earlier leader"


def test_a_nomination_is_not_written_while_a_binding_is_under_way() -> None:
    """It would move the version for which the Binding is (R3), and the pod would be decided again."""
    placement = Placement().nodes("n")
    pod = build.gpu_pod("p")
    nominated = msgspec.structs.replace(pod.status, nominated_node_name="n")
    placement.facts(msgspec.structs.replace(pod, status=nominated))
    uid, held = pod.metadata.uid, {pod.metadata.uid}
    nominations = Nominations(placement.core.book, dict, lambda: [uid], held)
    assert nominations.due(0.0) == []
    held.clear()
    assert [p.node for p in nominations.due(2 * NOMINATE_AGAIN_S)] == [""]


def test_a_part_of_a_composite_group_asks_for_no_node() -> None:
    meta = Meta(name="podgroup.scheduling.k8s.io/g", namespace="team", uid="g", resource_version=build.next_version())
    placement = cluster(autoscaler=True)
    pod = build.gpu_pod("a", compute=60, scheduling_group=SchedulingGroup(pod_group_name="g"))
    placement.facts(Gang(metadata=meta, minimum=1, parent="all"), pod)
    look(placement)
    assert {report.reason for report in patches(placement, ReportPending)} == {"GangIncomplete"}


@pytest.mark.parametrize(("reason", "again"), [("Unschedulable", True), ("Refused", False)])
def test_a_report_is_repeated_until_the_pod_has_its_reason(reason: str, again: bool) -> None:
    """A condition of before, with the reason for which autoscalers start nodes, is not enough."""
    placement = cluster()
    pod = build.pod("bad", limits={"kerf.dev/gpu-memory": "sixteen"})
    condition = Condition(type="PodScheduled", status="False", reason=reason)
    placement.facts(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=(condition,))))
    look(placement, 2.5 * SAY_AGAIN_S)
    assert (len(patches(placement, ReportPending)) > 1) == again
