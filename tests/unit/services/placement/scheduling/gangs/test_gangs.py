"""Gangs through the real core: all or none, in one log record, and the reasons that are reported."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.leader.traces import record
from services.placement.protocol.write_batcher import RECORD_MOST_BYTES
from services.placement.queries import questions
from shared.contracts.commands import AnnounceEvent, Answer, ReportPending, SelectNode, TouchPod
from shared.contracts.events import GangPlaced, GangWaiting, PlacementDecided
from shared.contracts.explain import PodExplanation
from shared.contracts.log import DecisionBatch, ReadyRecord
from shared.contracts.queries import WhyQuery
from shared.model.kube_object import Meta, OwnerReference
from shared.model.objects import Gang, Pod, PvcSource, SchedulingGate, Volume
from shared.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from shared.model.strategies import StrategyName
from shared.telemetry import Telemetry
from tests.support import build
from tests.support.harness.placement import Placement

RACK = "topology.kubernetes.io/rack"


def member(
    name: str, *, gang: str = "g", size: int = 2, gpus: int = 1, notes: dict[str, str] | None = None, **rest: Any
) -> Pod:
    annotations = {"kerf.dev/gang": gang, "kerf.dev/gang-size": str(size)} | {
        f"kerf.dev/gang-{k}": v for k, v in (notes or {}).items()
    }
    make = build.gpu_pod if gpus else build.pod
    return make(name, annotations=annotations, **({"gpus": gpus} if gpus else {}), **rest)


def members(count: int, *, prefix: str = "p", **rest: Any) -> list[Pod]:
    return [member(f"{prefix}{i}", **{"size": count, **rest}) for i in range(count)]


def why(placement: Placement, name: str) -> PodExplanation:
    answer = finish(questions.why(placement.core, WhyQuery(namespace="team", name=name), placement.now, placement.now))
    assert answer.explanation is not None
    return answer.explanation


def decided(placement: Placement) -> list[list[str]]:
    """Names by record of the log, in order; without records that a renewed term repeats."""
    return [[d.name for d in record.decisions] for _, record in placement.log if isinstance(record, DecisionBatch)]


def racks(placement: Placement, **nodes: str) -> Placement:
    """Nodes of four GPUs each, by their rack."""
    for name, rack in nodes.items():
        placement.facts(build.node(name, labels={RACK: rack} if rack else {}))
        placement.send(m.InventorySeen(build.inventory(name, gpus=4)))
    return placement


# --- all or none ------------------------------------------------------------------------------------------------


def test_no_member_is_placed_before_all_exist_and_then_all_are_in_one_record() -> None:
    placement = Placement().nodes("n1", "n2", gpus=4)
    pods = members(6)
    assert placement.place(*pods[:5]) == {}
    assert len(placement.place(*pods)) == 6
    assert [sorted(names) for names in decided(placement)] == [[f"p{i}" for i in range(6)]]


def test_a_large_member_does_not_take_capacity_that_the_gangs_small_members_need() -> None:
    placement = Placement().nodes("n1", gpus=2)
    pods = [
        member(name, size=3, gpus=gpus, notes={"min": "2"}) for name, gpus in (("large", 2), ("small", 1), ("tiny", 1))
    ]
    assert set(placement.place(*pods)) == {"small", "tiny"}


def test_if_not_all_fit_none_is_placed_and_nothing_is_held() -> None:
    placement = Placement().nodes("n1", gpus=4)
    before = placement.core.book.digest()
    assert placement.place(*members(5)) == {}
    assert placement.core.book.digest() == before
    assert placement.place(build.gpu_pod("other", gpus=4)) == {"other": "n1"}


def test_it_is_placed_as_soon_as_all_of_it_fits() -> None:
    placement = Placement().nodes("n1", gpus=4)
    assert placement.place(*members(6)) == {}
    placement.nodes("n2", gpus=4)
    assert len(placement.binds()) == 6


def test_a_gang_larger_than_a_batch_is_written_as_one_record() -> None:
    placement = Placement().nodes(*(f"n{i}" for i in range(20)), gpus=8)
    pods = members(150)
    placement.place(*pods)
    assert [len(names) for names in decided(placement)] == [150]
    assert len(placement.binds()) == 150


def test_a_gang_larger_than_a_batch_does_not_begin_in_a_record_that_others_have_begun() -> None:
    """Together with them it could be more than the log takes in one record."""
    placement = Placement(max_batch=4).nodes("n1", "n2", gpus=8)
    placement.facts(build.gpu_pod("first", gpus=1, created="2026-11-20T00:00:00Z"), *members(6))
    assert [sorted(names) for names in decided(placement)] == [["first"], [f"p{i}" for i in range(6)]]


def test_a_gang_that_no_record_of_the_log_could_take_is_refused_by_name() -> None:
    count = RECORD_MOST_BYTES // 250
    placement = Placement()
    for i in range(count // 32 + 1):
        placement.facts(build.node(f"n{i}"))
        placement.send(m.InventorySeen(build.inventory(f"n{i}", gpus=32)))
    before = placement.core.book.digest()
    assert placement.place(*members(count)) == {}
    assert placement.core.book.digest() == before
    assert why(placement, "p0").summary[0].code == "gang-too-large"


def test_two_gangs_that_only_fit_one_after_the_other_never_hold_half() -> None:
    placement = Placement().nodes("n1", gpus=4)
    a, b = members(3, prefix="a", gang="a"), members(3, prefix="b", gang="b")
    mixed = [pod for pair in zip(a, b, strict=True) for pod in pair]
    placed = placement.place(*mixed)
    assert sorted(placed) == ["a0", "a1", "a2"]
    for pod in a:
        seen = placement.bind(pod)
        placement.gone(build.newer(seen, phase="Succeeded"))
    for grant_id in list(placement.core.book.grants):
        placement.send(m.ReleaseSeen("n1", grant_id))
    assert sorted(n for n in placement.place(*b)) == ["b0", "b1", "b2"]


def test_members_of_different_size_are_placed_whatever_their_order() -> None:
    placement = Placement().nodes("n1", "n2", gpus=4)
    pods = [
        member("s0", size=4, gpus=1),
        member("s1", size=4, gpus=1),
        member("l0", size=4, gpus=3),
        member("l1", size=4, gpus=3),
    ]
    assert len(placement.place(*pods)) == 4


def test_a_launcher_without_gpus_belongs_to_its_gang() -> None:
    placement = Placement().nodes("n1", gpus=2)
    workers = [member(f"w{i}", size=3) for i in range(2)]
    assert placement.place(*workers) == {}
    assert len(placement.place(member("launcher", size=3, gpus=0), *workers)) == 3


def test_a_member_that_another_scheduler_places_counts_as_placed() -> None:
    placement = Placement().nodes("n1", gpus=2)
    placement.facts(member("launcher", size=3, gpus=0, scheduler="default-scheduler"))
    assert len(placement.place(*(member(f"w{i}", size=3) for i in range(2)))) == 2


def test_a_gated_member_does_not_count_until_its_gates_are_removed() -> None:
    placement = Placement().nodes("n1", gpus=4)
    gated = member("p0", scheduling_gates=(SchedulingGate(name="quota"),))
    assert placement.place(gated, member("p1")) == {}
    assert "1 pod more is gated" in why(placement, "p1").sentence
    free = msgspec.structs.replace(build.newer(gated), spec=msgspec.structs.replace(gated.spec, scheduling_gates=()))
    assert sorted(placement.place(free, member("p1"))) == ["p0", "p1"]


def test_gangs_of_one_name_in_two_namespaces_are_two_gangs() -> None:
    placement = Placement().nodes("n1", gpus=4)
    assert placement.place(member("p0", namespace="one"), member("p1", namespace="two")) == {}


def test_a_gang_is_tried_by_the_priority_of_its_first_member() -> None:
    placement = Placement().nodes("n1", gpus=2)
    placement.facts(build.gpu_pod("full", gpus=2))
    low, high = members(2, prefix="low", gang="low", priority=1), members(2, prefix="high", gang="high", priority=0)
    high[1] = member("high1", gang="high", priority=5)
    placement.place(*low, *high)
    assert placement.binds().keys() == {"uid-team-full"}
    placement.nodes("n2", gpus=2)
    assert placement.binds().keys() == {"uid-team-full", "uid-team-high0", "uid-team-high1"}


def test_a_gang_of_mig_instances_fills_a_gpu_or_leaves_it_untouched() -> None:
    """Seven instances are the maximum of an A100, and each has less than a seventh of its memory by name."""
    strategies: tuple[StrategyName, ...] = ("exclusive", "advisory", "mig")
    plain = build.inventory("n", gpus=1, memory_mib=40960, model="NVIDIA-A100-SXM4-40GB", strategies=strategies)
    gpu = msgspec.structs.replace(plain.gpus[0], mig_enabled=True, mig_on_demand=True)
    placement = Placement()
    placement.facts(build.node("n"))
    placement.send(m.InventorySeen(msgspec.structs.replace(plain, gpus=(gpu,))))

    def instances(count: int, gang: str) -> list[Pod]:
        notes = {"kerf.dev/gang": gang, "kerf.dev/gang-size": str(count)}
        return [
            build.pod(f"{gang}{i}", limits={"kerf.dev/slot": "1", "kerf.dev/mig-1g.5gb": "1"}, annotations=notes)
            for i in range(count)
        ]

    columns = placement.core.book.arrays
    before = (columns.gpu_mig_used.copy(), columns.gpu_mig_fits.copy(), placement.core.book.digest())
    assert placement.place(*instances(8, "a")) == {}
    assert (columns.gpu_mig_used.tolist(), columns.gpu_mig_fits.tolist(), placement.core.book.digest()) == (
        before[0].tolist(),
        before[1].tolist(),
        before[2],
    )
    assert len(placement.place(*instances(7, "b"))) == 7


# --- elastic, late, restarted -----------------------------------------------------------------------------------


def test_above_the_minimum_members_come_one_by_one() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(6, notes={"min": "3"})
    assert placement.place(*pods[:2]) == {}
    assert len(placement.place(*pods)) == 4
    assert len(decided(placement)[0]) >= 3
    placement.nodes("n2", gpus=4)
    assert len(placement.binds()) == 6


def test_no_gang_grows_above_its_minimum_while_another_lacks_it() -> None:
    placement = Placement()
    placement.facts(
        *members(4, prefix="a", gang="a", notes={"min": "2"}), *members(4, prefix="b", gang="b", notes={"min": "2"})
    )
    placement.facts(build.gpu_pod("single", gpus=1, created="2026-11-21T01:00:00Z"))
    placement.nodes("n1", gpus=6)
    placed = sorted(b.name for b in placement.binds().values())
    assert [n[0] for n in placed] == ["a", "a", "a", "b", "b", "s"]


def test_members_above_the_minimum_count_again_when_it_falls_below() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(5, notes={"min": "4"})
    placement.place(*pods)
    (spare,) = {p.metadata.uid for p in pods} - placement.binds().keys()
    seen = [placement.bind(p) for p in pods if p.metadata.uid != spare]
    placement.gone(build.newer(seen[0], phase="Failed"))
    placement.facts(build.gpu_pod("younger", gpus=1, created="2026-11-21T01:00:00Z"))
    placement.send(
        m.ReleaseSeen("n1", next(g.grant_id for g in placement.core.book.grants.values() if g.phase == "leaving"))
    )
    assert spare in placement.binds()
    assert "uid-team-younger" not in placement.binds()


def test_a_restarted_member_does_not_wait_for_the_others_again() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(3)
    placement.place(*pods)
    seen = [placement.bind(pod) for pod in pods]
    placement.gone(build.newer(seen[0], phase="Failed"))
    assert placement.place(member("again", size=3)) == {"again": "n1"}


def test_restarted_members_that_exist_are_placed_together() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(4)
    placement.place(*pods)
    seen = [placement.bind(pod) for pod in pods]
    for pod in seen[1:]:
        placement.gone(build.newer(pod, phase="Failed"))
    # The node has not released what the three held: one GPU is not enough for the two that exist.
    for grant_id in [g.grant_id for g in placement.core.book.grants.values() if g.phase == "leaving"][:1]:
        placement.send(m.ReleaseSeen("n1", grant_id))
    placement.send(m.FactsSeen(build.put(member("x1", size=4), member("x2", size=4))))
    assert "uid-team-x1" not in placement.binds()
    for grant_id in [g.grant_id for g in placement.core.book.grants.values() if g.phase == "leaving"][:1]:
        placement.send(m.ReleaseSeen("n1", grant_id))
    placement.tick(2.0)
    assert {"uid-team-x1", "uid-team-x2"} <= placement.binds().keys()


def test_a_member_that_changes_before_its_binding_is_placed_again_alone() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(2)
    placement.place(*pods)
    placement.bind(pods[1])
    placement.facts(build.newer(pods[0], labels={"edited": "yes"}))
    assert decided(placement)[-1] == ["p0"]


# --- topology ---------------------------------------------------------------------------------------------------


def test_a_required_level_keeps_the_whole_gang_in_one_domain() -> None:
    placement = racks(Placement(), a1="a", a2="a", b1="b", b2="b", none="")
    placement.facts(build.gpu_pod("in-the-way", gpus=3, node_selector={"kubernetes.io/hostname": "a1"}))
    placed = placement.place(*members(6, notes={"topology": "required=rack"}))
    assert {node[0] for node in placed.values()} == {"b"}
    assert placement.events(GangPlaced)[0].area == f"{RACK}=b"


def test_of_domains_that_fit_the_one_with_the_least_free_capacity_is_taken() -> None:
    placement = racks(Placement(), a1="a", a2="a", a3="a", b1="b", b2="b")
    assert {n[0] for n in placement.place(*members(6, notes={"topology": "required=rack"})).values()} == {"b"}


def test_if_no_domain_fits_a_required_level_waits_and_names_the_nearest_domain() -> None:
    placement = racks(Placement(), a1="a", b1="b", b2="b")
    assert placement.place(*members(9, notes={"topology": "required=rack"})) == {}
    said = why(placement, "p0")
    assert said.gang is not None
    assert (said.gang.fits, said.gang.area) == (8, f"{RACK}=b")
    assert "8 of the 9 pods" in said.sentence
    racks(placement, b3="b")
    assert len(placement.binds()) == 9


def test_a_preferred_level_uses_one_domain_if_the_gang_fits_and_otherwise_few() -> None:
    placement = racks(Placement(), a1="a", b1="b", b2="b", c1="c", c2="c", c3="c")
    notes = {"topology": "preferred=rack"}
    assert {n[0] for n in placement.place(*members(8, gang="one", prefix="x", notes=notes)).values()} == {"b"}
    assert {n[0] for n in placement.place(*members(14, gang="two", prefix="y", notes=notes)).values()} == {"a", "c"}


def test_late_members_stay_in_the_required_domain_of_their_gang() -> None:
    placement = racks(Placement(), a1="a", b1="b")
    notes = {"topology": "required=rack", "min": "3"}
    first = placement.place(*members(3, size=6, notes=notes))
    (rack,) = {n[0] for n in first.values()}
    late = placement.place(*(member(f"late{i}", size=6, notes=notes) for i in range(3)))
    assert {n[0] for n in late.values()} == {rack}
    assert len(late) == 1
    waiting = ({f"late{i}" for i in range(3)} - late.keys()).pop()
    assert (
        f"room for 0 of the 1 pod of gang g that must be placed together, at most in {RACK}={rack}"
        in why(placement, waiting).sentence
    )


def test_level_names_map_to_labels_and_node_is_one() -> None:
    placement = Placement().nodes("n1", "n2", gpus=4)
    placement.facts(build.gpu_pod("half", gpus=2, node_selector={"kubernetes.io/hostname": "n1"}))
    assert set(placement.place(*members(4, notes={"topology": "required=node"})).values()) == {"n2"}


def test_a_level_that_no_node_has_is_named() -> None:
    placement = Placement().nodes("n1", gpus=4)
    assert placement.place(*members(2, notes={"topology": "required=example.com/row"})) == {}
    assert "no node has the label example.com/row" in why(placement, "p0").sentence


# --- sizes that other objects define ----------------------------------------------------------------------------


def owned(name: str) -> Pod:
    return build.gpu_pod(name, gpus=1, labels={"scheduling.x-k8s.io/pod-group": "train"})


def pod_group(minimum: int, **fields: Any) -> Gang:
    meta = Meta(
        name="podgroup.scheduling.x-k8s.io/train", namespace="team", uid="uid-pg", resource_version=build.next_version()
    )
    return Gang(metadata=meta, minimum=minimum, **fields)


def test_gang_members_wait_for_the_object_that_states_their_number() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = [owned("p0"), owned("p1")]
    assert placement.place(*pods) == {}
    assert why(placement, "p0").summary[0].code == "gang-unknown"
    placement.facts(pod_group(2))
    assert sorted(placement.place(*pods)) == ["p0", "p1"]


def test_the_object_may_exist_first_and_may_change_later() -> None:
    placement = Placement().nodes("n1", gpus=4)
    placement.facts(pod_group(3))
    assert placement.place(owned("p0"), owned("p1")) == {}
    said = why(placement, "p0").summary[0]
    assert (said.code, said.helps) == (
        "gang-gathering",
        "create the other 1 pod, or lower the minimum of podgroup.scheduling.x-k8s.io/train to 2",
    )
    placement.gone(pod_group(3))
    placement.facts(pod_group(2))
    assert len(placement.binds()) == 2


def test_a_group_without_a_minimum_is_no_gang() -> None:
    placement = Placement().nodes("n1", gpus=4)
    placement.facts(pod_group(0))
    assert placement.place(owned("p0")) == {"p0": "n1"}


def test_parts_of_an_object_are_gangs_of_their_own() -> None:
    def worker(name: str, part: str) -> Pod:
        return build.gpu_pod(
            name, gpus=1, labels={"jobset.sigs.k8s.io/jobset-name": "js", "jobset.sigs.k8s.io/replicatedjob-name": part}
        )

    placement = Placement().nodes("n1", gpus=4)
    meta = Meta(name="jobset.jobset.x-k8s.io/js", namespace="team", uid="uid-js", resource_version=build.next_version())
    placement.facts(Gang(metadata=meta, minimum=0, parts={"driver": 1, "workers": 2}))
    assert placement.place(worker("d", "driver"), worker("w0", "workers")) == {"d": "n1"}
    assert sorted(placement.place(worker("w1", "workers"), worker("w0", "workers"))) == ["w0", "w1"]


# --- invalid or conflicting input -------------------------------------------------------------------------------


def test_a_crash_between_deciding_and_the_log_leaves_no_member_decided() -> None:
    placement = Placement(answer=False)
    placement.send(m.SnapshotSeen(()))
    placement.send(m.Appended(101))
    placement.answer = True
    placement.nodes("n1", gpus=4)
    placement.answer = False
    pods = members(3)
    placement.facts(*pods)
    assert placement.binds() == {}
    successor = Placement(*pods, build.node("n1"), term=200, records=((101, ReadyRecord(term=100)),))
    assert successor.core.stats.readopted == 0


def test_a_successor_completes_a_gang_that_is_bound_in_part() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(3)
    placement.place(*pods)
    seen = placement.bind(pods[0])
    changed = build.newer(pods[2], labels={"edited": "yes"})
    records = tuple((sequence, record) for sequence, record in placement.log)
    successor = Placement(seen, pods[1], changed, build.node("n1"), term=900, records=records)
    successor.send(m.InventorySeen(build.inventory("n1", gpus=4)))
    assert successor.core.stats.readopted == 1
    assert {b.uid for b in successor.binds().values()} == {"uid-team-p1", "uid-team-p2"}


def test_open_holds_of_a_large_gang_are_logged_again_in_parts_that_the_bus_takes() -> None:
    placement = Placement().nodes(*(f"n{i}" for i in range(10)), gpus=32)
    pods = members(300)
    placement.place(*pods)
    assert [len(names) for names in decided(placement)] == [300]
    placement.send(m.TermRenewed(term=5000))
    assert [len(names) for names in decided(placement)] == [300, 256, 44]
    assert placement.log[-1][1] == ReadyRecord(term=5000)
    successor = Placement(*pods, *(build.node(f"n{i}") for i in range(10)), term=9000, records=tuple(placement.log))
    assert successor.core.stats.readopted == 300
    assert [len(names) for names in decided(successor)] == [256, 44]
    assert successor.log[-1][1] == ReadyRecord(term=9000)
    assert [len(c.binds) for c in successor.commands if isinstance(c, m.SendBinds)][-2:] == [256, 44]


def test_after_a_refused_binding_the_rest_runs_and_the_member_is_tried_again_alone() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(3)
    placement.place(*pods)
    for pod in pods[:2]:
        placement.bind(pod)
    version = placement.binds()["uid-team-p2"].resource_version
    placement.send(
        m.BindsAnswered((Answer(uid="uid-team-p2", outcome="refused", resource_version=version, message="no"),))
    )
    assert any(isinstance(p, TouchPod) for p in placement.patches())
    placement.facts(build.newer(pods[2]))
    placement.tick(5.0)
    assert decided(placement)[-1] == ["p2"]


def test_after_its_time_out_a_gang_releases_unbound_members_and_notifies_bound_ones() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(3, notes={"timeout": "30"})
    placement.place(*pods)
    placement.bind(pods[0])
    placement.gone(pods[1])
    placement.commands.clear()
    placement.tick(29.0)
    assert not any(isinstance(p, TouchPod) for p in placement.patches())
    placement.tick(2.0)
    touched = [p.uid for p in placement.patches() if isinstance(p, TouchPod)]
    assert touched == ["uid-team-p2"]
    told = [p for p in placement.patches() if isinstance(p, AnnounceEvent)]
    assert [(p.uid, p.reason) for p in told] == [("uid-team-p0", "GangIncomplete")]
    placement.commands.clear()
    placement.facts(build.newer(pods[2]))
    placement.send(m.BeatSeen(("n1",)))
    assert placement.binds() == {}
    assert placement.place(build.gpu_pod("other", gpus=3)) == {"other": "n1"}


def test_every_process_lists_the_releases_of_a_gang_in_the_same_order() -> None:
    placement = Placement().nodes("n1", gpus=16)
    pods = members(16, size=16)
    placement.place(*pods)
    placement.gone(pods[0])
    placement.commands.clear()
    placement.tick(61.0)
    touched = [p.uid for p in placement.patches() if isinstance(p, TouchPod)]
    assert touched == sorted(p.metadata.uid for p in pods[1:])


def test_completed_members_are_not_missing() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = members(3)
    placement.place(*pods)
    seen = [placement.bind(pod) for pod in pods]
    placement.facts(build.newer(seen[0], phase="Succeeded"), build.newer(seen[1], phase="Failed"))
    placement.gone(build.newer(seen[0], phase="Succeeded"))
    placement.tick(100.0)
    assert [p for p in placement.patches() if isinstance(p, AnnounceEvent)] == []


def test_a_restarted_member_does_not_wait_for_completed_members_of_its_job() -> None:
    """The last of a Job's pods fails when the others have ended well: it is the same run, not a new gang."""
    job = OwnerReference(kind="Job", name="train", uid="uid-job", controller=True)

    def of_job(pod: Pod) -> Pod:
        return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(job,)))

    placement = Placement().nodes("n1", gpus=4)
    pods = [of_job(pod) for pod in members(3)]
    placement.place(*pods)
    seen = [placement.bind(pod) for pod in pods]
    placement.facts(*(build.newer(pod, phase="Succeeded") for pod in seen[:2]), build.newer(seen[2], phase="Failed"))
    assert placement.place(of_job(member("again", size=3))) == {"again": "n1"}


# --- reported reasons -------------------------------------------------------------------------------------------


def test_kerf_why_counts_the_existing_members() -> None:
    placement = Placement().nodes("n1", gpus=4)
    placement.place(*members(3, size=5))
    said = why(placement, "p1")
    assert said.sentence == "3 of the 5 pods of gang g are there, and none is placed before the others"
    assert said.gang is not None
    assert (said.gang.members, said.gang.minimum, said.gang.placed) == (3, 5, 0)


def test_kerf_why_names_the_member_that_does_not_fit_beside_the_others() -> None:
    placement = Placement().nodes("n1", "n2", gpus=4)
    pods = [member("a", size=3, gpus=3), member("b", size=3, gpus=3), member("c", size=3, gpus=2)]
    assert placement.place(*pods) == {}
    said = why(placement, "a")
    assert said.gang is not None
    assert (said.gang.fits, said.gang.misfit) == (2, "c")
    assert "c does not beside them" in said.sentence


def test_members_get_a_reason_once_and_again_when_it_changes() -> None:
    placement = Placement().nodes("n1", gpus=1)
    placement.place(*members(2, size=3))
    for _ in range(50):
        placement.tick()
    waiting = placement.events(GangWaiting)
    assert [e.sentence.split(",")[0] for e in waiting] == ["2 of the 3 pods of gang g are there"]
    placement.facts(member("p2", size=3))
    for _ in range(400):
        placement.tick()
    assert len(placement.events(GangWaiting)) == 2
    assert "room for 1 of the 3 pods" in placement.events(GangWaiting)[-1].sentence


def test_events_name_the_gang() -> None:
    placement = Placement().nodes("n1", gpus=4)
    placement.place(*members(3))
    assert {e.gang for e in placement.events(PlacementDecided)} == {"g"}
    (event,) = placement.events(GangPlaced)
    assert (event.name, sorted(event.pods), event.nodes, event.minimum) == ("g", ["p0", "p1", "p2"], 1, 3)
    assert event.sequence == placement.log[-1][0]


def test_the_trace_of_each_member_links_to_that_of_the_gang() -> None:
    telemetry = Telemetry("placement", ratio=1.0, otlp_endpoint="", to_bus=True)
    placement = Placement().nodes("n1", gpus=4)
    placement.place(*members(2))
    for command in placement.commands:
        if isinstance(command, m.Publish):
            record(telemetry, command)
    spans = telemetry.take()
    (gang,) = [s for s in spans if s.name == "gang.placed"]
    placements = [s for s in spans if s.name == "placement"]
    assert len({s.trace_id for s in placements} - {gang.trace_id}) == 2
    assert all(gang.trace_id in link for s in placements for link in s.links)


def test_members_with_late_binding_volumes_are_decided_when_all_their_claims_are_bound() -> None:
    """The nodes are chosen together, each claim gets its pod's node, and nothing is held in the meantime."""
    late = msgspec.convert(
        {
            "kind": "StorageClass",
            "metadata": {"name": "late"},
            "provisioner": "example.com/disks",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        StorageClass,
    )
    placement = Placement().nodes("n1", gpus=4)
    placement.facts(late, claim("data-0"))
    volumes = (Volume(name="data", persistent_volume_claim=PvcSource(claim_name="data-0")),)
    pods = [member("p0", volumes=volumes), member("p1")]
    before = placement.core.book.digest()
    assert placement.place(*pods) == {}
    assert [(p.claim, p.node) for p in placement.patches() if isinstance(p, SelectNode)] == [("data-0", "n1")]
    assert placement.core.book.digest() == before
    placement.facts(
        claim("data-0", volume="pv-0"),
        msgspec.convert(
            {
                "kind": "PersistentVolume",
                "metadata": {"name": "pv-0", "uid": "uid-pv-0"},
                "spec": {"claimRef": {"namespace": "team", "name": "data-0"}},
            },
            PersistentVolume,
        ),
    )
    placement.tick(1.0)
    assert sorted(placement.binds()) == ["uid-team-p0", "uid-team-p1"]


def claim(name: str, *, volume: str = "") -> PersistentVolumeClaim:
    spec = {
        "storageClassName": "late",
        "accessModes": ["ReadWriteOnce"],
        "volumeName": volume,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": build.next_version()}
    return msgspec.convert(
        {
            "kind": "PersistentVolumeClaim",
            "metadata": meta,
            "spec": spec,
            "status": {"phase": "Bound" if volume else "Pending"},
        },
        PersistentVolumeClaim,
    )


@pytest.mark.parametrize("fail", [True, False])
def test_explaining_changes_nothing(fail: bool) -> None:
    placement = Placement().nodes("n1", "n2", gpus=4)
    pods = [member("a", size=3, gpus=3), member("b", size=3, gpus=3), member("c", size=3, gpus=2 if fail else 1)]
    placement.place(*pods)
    before = placement.core.book.digest()
    why(placement, "a")
    assert placement.core.book.digest() == before


def test_a_changed_reason_is_reported_even_if_no_pod_fits() -> None:
    """Two of five fitted when they got the reason; then a node comes, and four fit."""
    placement = Placement().nodes("a", gpus=2)
    pods = [
        build.gpu_pod(f"p{i}", gpus=1, annotations={"kerf.dev/gang": "g", "kerf.dev/gang-size": "5"}) for i in range(5)
    ]
    placement.facts(*pods)
    for _ in range(10):
        placement.tick(0.5)
    placement.nodes("b", gpus=2)
    for _ in range(80):
        placement.send(m.BeatSeen(("a", "b")))
        placement.tick(0.5)
    said: dict[str, str] = {}
    for command in placement.commands:
        for patch in command.patches if isinstance(command, m.SendPatches) else ():
            if isinstance(patch, ReportPending):
                said[patch.uid] = patch.message
    assert len(said) == 5
    assert all("room for 4 of the 5 pods" in message for message in said.values())
