"""What Kubernetes' PodGroups say of their scheduling: when, once, and never back."""

from __future__ import annotations

from typing import Any

import msgspec

from services.placement import messages as m
from services.placement.explain.pod_groups import AGAIN_S, MOST_AT_ONCE, PodGroupConditions
from shared.book.book import Book
from shared.contracts.commands import ReportPodGroup
from shared.contracts.events import PlacementDecided
from shared.contracts.facts import Put
from shared.model.kube_object import Meta
from shared.model.objects import Gang, GroupCondition, Pod, SchedulingGroup
from tests.support import build
from tests.support.harness.placement import Placement
from tests.unit.services.placement.core_pods import show_bound
from tests.unit.services.placement.scheduling.gangs.members import why


def group(minimum: int, **fields: Any) -> Gang:
    meta = Meta(
        name="podgroup.scheduling.k8s.io/train", namespace="team", uid="uid-pg", resource_version=build.next_version()
    )
    return Gang(metadata=meta, minimum=minimum, generation=1, **fields)


def member(name: str, *, gpus: int = 1, **fields: Any) -> Pod:
    return build.gpu_pod(name, gpus=gpus, scheduling_group=SchedulingGroup(pod_group_name="train"), **fields)


def reports(placement: Placement) -> list[ReportPodGroup]:
    return [patch for patch in placement.patches() if isinstance(patch, ReportPodGroup)]


def pass_s(placement: Placement, seconds: float) -> None:
    for _ in range(int(seconds)):
        placement.tick(1.0)


def said(*reported: ReportPodGroup) -> list[tuple[bool, str]]:
    return [(one.scheduled, one.reason) for one in reported]


def test_a_group_that_finds_no_room_is_unschedulable_with_the_sentence_of_its_pods() -> None:
    placement = Placement().nodes("n1", gpus=1)
    placement.facts(group(2), member("p0"), member("p1"))
    pass_s(placement, 5)
    (report,) = reports(placement)
    assert (report.uid, report.namespace, report.name) == ("uid-pg", "team", "train")
    assert said(report) == [(False, "Unschedulable")]
    assert report.message == why(placement, "p0").sentence
    assert "there is room for 1 of the 2 pods" in report.message


def test_a_group_whose_minimum_is_bound_is_scheduled_and_not_before() -> None:
    placement = Placement().nodes("n1", gpus=2)
    placement.facts(group(2), member("p0"), member("p1"))
    pass_s(placement, 3)
    assert len(placement.events(PlacementDecided)) == 2, "they have places"
    assert reports(placement) == []
    for pod in (member("p0"), member("p1")):
        show_bound(placement, pod)
    pass_s(placement, 3)
    assert said(*reports(placement)) == [(True, "Scheduled")]


def test_finished_pods_of_a_deleted_group_say_nothing_of_its_successor() -> None:
    placement = Placement().nodes("n1", gpus=2)
    first, pods = group(2), [member("p0"), member("p1")]
    placement.facts(first, *pods)
    over = [build.newer(placement.bind(pod), phase="Succeeded") for pod in pods]
    placement.facts(*over)
    placement.gone(first)
    later = msgspec.structs.replace(first.metadata, uid="uid-later", resource_version=build.next_version())
    placement.commands.clear()
    placement.facts(msgspec.structs.replace(first, metadata=later), member("q0"))
    pass_s(placement, 5)
    assert [(one.uid, one.scheduled) for one in reports(placement)] == [("uid-later", False)]


def test_a_report_is_repeated_until_it_is_on_the_object_and_then_no_more() -> None:
    placement = Placement().nodes("n1", gpus=1)
    placement.facts(group(2), member("p0"), member("p1"))
    pass_s(placement, 3 * AGAIN_S)
    times = len(reports(placement))
    assert 2 <= times <= 4
    first = reports(placement)[0]
    placement.facts(group(2, scheduled=GroupCondition(status="False", reason="Unschedulable", message=first.message)))
    pass_s(placement, 3 * AGAIN_S)
    assert len(reports(placement)) == times


def test_a_condition_that_is_true_stays_whatever_becomes_of_the_pods() -> None:
    placement = Placement().nodes("n1", gpus=1)
    placement.facts(group(2, scheduled=GroupCondition(status="True", reason="Scheduled")))
    placement.facts(member("p0"), member("p1"))
    pass_s(placement, 3 * AGAIN_S)
    assert why(placement, "p0").summary[0].code == "gang-room"
    assert reports(placement) == []


def test_the_condition_alone_changes_nothing_in_the_book() -> None:
    """Else each report would have waiting pods tried again, and that would cause the next report."""
    book = Book()
    assert book.apply(Put(object=group(2))) != []
    condition = GroupCondition(status="False", reason="Unschedulable", message="no room")
    assert book.apply(Put(object=group(2, scheduled=condition))) == []
    assert book.apply(Put(object=group(1, scheduled=condition))) != [], "another minimum does"


def test_a_group_is_tried_again_when_its_minimum_changes() -> None:
    placement = Placement().nodes("n1", gpus=1)
    placement.facts(group(2), member("p0"), member("p1"))
    condition = GroupCondition(status="False", reason="Unschedulable", message="no room")
    placement.facts(group(2, scheduled=condition))
    assert placement.events(PlacementDecided) == []
    placement.facts(group(1, scheduled=condition))
    assert len(placement.events(PlacementDecided)) == 1


def test_a_basic_group_is_scheduled_with_its_first_pod() -> None:
    """As in kube-scheduler: pkg/scheduler/framework/plugins/gangscheduling counts it as one that needs a single pod."""
    placement = Placement().nodes("n1", gpus=1)
    placement.facts(group(0), member("big", gpus=2))
    pass_s(placement, 3)
    assert said(*reports(placement)) == [(False, "Unschedulable")]
    show_bound(placement, member("p0"))
    pass_s(placement, 3)
    assert said(*reports(placement))[-1] == (True, "Scheduled")


def test_the_groups_of_another_scheduler_are_not_reported() -> None:
    placement = Placement().nodes("n1", gpus=2)
    theirs = [member(name, scheduler="default-scheduler") for name in ("p0", "p1")]
    placement.facts(group(2), *theirs)
    pass_s(placement, 5)
    assert reports(placement) == []


def test_reports_are_sent_in_a_message_of_their_own() -> None:
    """A watcher of the version before cannot read it, and must get the other orders all the same."""
    placement = Placement().nodes("n1", gpus=1)
    placement.facts(group(2), member("p0"), member("p1"))
    pass_s(placement, 5)
    batches = [c.patches for c in placement.commands if isinstance(c, m.SendPatches)]
    assert [len(b) for b in batches if any(isinstance(p, ReportPodGroup) for p in b)] == [1]


def test_a_part_of_a_composite_group_waits_and_says_which_group_is_not_read() -> None:
    """Its parts one by one would be wrong: CompositePodGroupSpec.schedulingPolicy.gang.minGroupCount says how many of
    them must be placed together (kubernetes/api scheduling/v1alpha3/types.go, Kubernetes 1.37, alpha)."""
    placement = Placement().nodes("n1", gpus=2)
    placement.facts(group(1, parent="all"), member("p0"))
    pass_s(placement, 5)
    assert placement.binds() == {}
    reason = why(placement, "p0").summary[0]
    assert reason.code == "gang-composite"
    assert "CompositePodGroup all" in reason.sentence
    assert said(*reports(placement)) == [(False, "Unschedulable")]


def test_every_group_has_its_turn_where_reports_do_not_arrive() -> None:
    """With many groups the first ones would be ordered again before the last ones were ordered once."""
    placement = Placement()
    count = int(2 * AGAIN_S * MOST_AT_ONCE)
    said: dict[str, str] = {}
    for i in range(count):
        name = f"podgroup.scheduling.k8s.io/g{i}"
        meta = Meta(name=name, namespace="team", uid=f"g{i}", resource_version=build.next_version())
        pod = build.gpu_pod(f"p{i}", gpus=1, scheduling_group=SchedulingGroup(pod_group_name=f"g{i}"))
        for object_ in (Gang(metadata=meta, minimum=2), pod):
            placement.core.book.apply(Put(object=object_))
        said[f"team/{name}"] = "no room"
    placement.core.gangs.start_over(0.0)
    conditions = PodGroupConditions(placement.core.book, placement.core.gangs, said, {})
    reported = {order.name for now in range(int(2 * AGAIN_S)) for order in conditions.due(float(now))}
    assert len(reported) == count
