"""Plans that migrate equals: what is refused, which places are reserved, and for how long."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from shared.contracts.commands import SelectNode
from shared.contracts.facts import Gone
from shared.contracts.preemption import Plan
from shared.model.grant import decode_grant
from shared.model.kube_object import OwnerReference
from shared.model.objects import Pod, PvcSource, Volume
from tests.support import build
from tests.support.harness.proposals import Proposals, empty_cluster, refused
from tests.support.late_volumes import LATE, claim, volume

DELETED = "2026-11-21T01:00:00Z"


def owned(name: str, owner: str = "", *, number: int = 0, **rest: Any) -> Pod:
    """A pod of a job; `number`: how often it was replaced."""
    pod = build.gpu_pod(name, uid=f"uid-team-{name}-{number}", **({"gpus": 1} | rest))
    reference = OwnerReference(uid=owner or f"job-{name}", kind="Job", name=owner or name, controller=True)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(reference,)))


def fragmented(**pods: Pod) -> tuple[Proposals, Pod]:
    """Two nodes of two GPUs, each with one pod and one that has ended; and a pending pod that requests two GPUs."""
    cluster = empty_cluster("a", "b")
    running = {"x": owned("x"), "y": owned("y")} | pods
    for name, pod in running.items():
        other = build.gpu_pod("beside", gpus=1, uid=f"uid-beside-{name}")
        cluster.run(pod)
        cluster.run(
            msgspec.structs.replace(other, metadata=msgspec.structs.replace(other.metadata, name=f"beside-{name}"))
        )
    for name in running:
        cluster.release(f"beside-{name}")
    wants = build.gpu_pod("wants", gpus=2)
    cluster.wait(wants)
    return cluster, wants


def moves(cluster: Proposals, wants: Pod, *names: str, to: str = "", consolidates: bool = True) -> Plan:
    """Returns a plan that migrates the pods to the other node, unless `to` says otherwise."""
    here = cluster.bound[names[0]].spec.node_name
    there = to or next(other for other in ("a", "b") if other != here)
    plan = with_targets(cluster.plan(*names, to=(wants,), nodes=(here,)), *(there for _ in names))
    return msgspec.structs.replace(plan, consolidates=consolidates)


def test_an_equal_is_migrated_and_the_pending_pod_gets_its_place() -> None:
    """A rival pod of any priority that arrives in between gets neither place."""
    cluster, wants = fragmented()
    there = cluster.bound["y"].spec.node_name
    assert cluster.propose(moves(cluster, wants, "x")).ok
    cluster.release("x")
    rival = build.gpu_pod("rival", gpus=1, priority=1000)
    cluster.wait(rival)
    again = owned("x", number=1)
    cluster.placement.facts(again)
    assert (cluster.node_of(again), cluster.node_of(wants)) == (there, "b" if there == "a" else "a")
    assert cluster.node_of(rival) == ""
    assert cluster.placement.core.book.overbooked() == []


def test_a_migration_of_equals_needs_a_consolidation_plan() -> None:
    cluster, wants = fragmented()
    assert "of no lower priority" in refused(cluster, moves(cluster, wants, "x", consolidates=False))


def test_no_pod_of_higher_priority_is_migrated() -> None:
    cluster, wants = fragmented(x=owned("x", priority=5))
    assert "has a higher priority" in refused(cluster, moves(cluster, wants, "x"))


def test_a_consolidation_plan_evicts_no_pod_without_a_target() -> None:
    cluster, wants = fragmented()
    plan = moves(cluster, wants, "x")
    ends = msgspec.structs.replace(
        plan, victims=tuple(msgspec.structs.replace(v, action="evict", to="") for v in plan.victims)
    )
    assert "would lose its place" in refused(cluster, ends)


def test_no_pod_is_migrated_to_a_full_node() -> None:
    cluster, wants = fragmented()
    plan = moves(cluster, wants, "x", to=cluster.bound["x"].spec.node_name)
    assert "would not fit even without the victims" in refused(cluster, plan)


def test_a_pod_without_a_controller_is_not_migrated() -> None:
    cluster, wants = fragmented(x=build.gpu_pod("x", gpus=1))
    assert "no controller that replaces it" in refused(cluster, moves(cluster, wants, "x"))


def test_a_member_that_its_gang_needs_is_not_migrated() -> None:
    cluster, wants = fragmented(x=owned("x", annotations={"kerf.dev/gang": "g", "kerf.dev/gang-size": "1"}))
    assert "its gang needs it" in refused(cluster, moves(cluster, wants, "x"))


def test_only_members_that_a_gang_can_spare_are_migrated() -> None:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2", "kerf.dev/gang-min": "1"}
    cluster = empty_cluster("a", "b", "c")
    cluster.run_on("b", owned("k"))
    cluster.run_on("c", owned("l"))
    cluster.run_on("a", owned("x", annotations=notes), owned("y", annotations=notes))
    wants, small = (
        build.gpu_pod("wants", gpus=2),
        build.gpu_pod("small", gpus=1, node_selector={"kubernetes.io/hostname": "a"}),
    )
    cluster.wait(wants, small)
    both = with_targets(cluster.plan("x", "y", to=(wants,), nodes=("a",)), "b", "c")
    assert "its gang needs it" in refused(cluster, both)
    assert cluster.propose(with_targets(cluster.plan("x", to=(small,), nodes=("a",)), "b")).ok
    cluster.release("x")
    cluster.placement.facts(again := owned("x", number=1, annotations=notes))
    assert cluster.placement.binds()[again.metadata.uid].node == "b"
    assert cluster.placement.binds()[small.metadata.uid].node == "a"


def test_the_member_of_another_gang_of_the_same_job_is_no_replacement() -> None:
    """It would be decided without its own gang."""
    cluster, wants = fragmented(x=owned("x", "job"), y=owned("y"))
    assert cluster.propose(moves(cluster, wants, "x")).ok
    cluster.release("x")
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    cluster.placement.facts(member := owned("z", "job", annotations=notes))
    assert member.metadata.uid not in cluster.placement.binds()
    cluster.placement.facts(again := owned("x", "job", number=1))
    assert cluster.placement.binds()[again.metadata.uid].node == "b"


def test_a_replacement_that_its_gang_needs_by_then_waits_for_the_others() -> None:
    """All members have ended meanwhile, and the gang needs two to begin anew."""
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2", "kerf.dev/gang-min": "1"}
    cluster = empty_cluster("a", "b")
    cluster.run_on("b", owned("k"))
    cluster.run_on("a", owned("x", "job", annotations=notes), owned("y", "job", annotations=notes))
    small = build.gpu_pod("small", gpus=1, node_selector={"kubernetes.io/hostname": "a"})
    cluster.wait(small)
    assert cluster.propose(with_targets(cluster.plan("x", to=(small,), nodes=("a",)), "b")).ok
    for name in ("x", "y"):
        cluster.release(name)
    more = notes | {"kerf.dev/gang-min": "2"}
    cluster.placement.facts(again := owned("x", "job", number=1, annotations=more))
    assert again.metadata.uid not in cluster.placement.binds()
    cluster.placement.facts(other := owned("y", "job", number=1, annotations=more))
    for _ in range(7):  # until what was reserved for the one is free again
        cluster.placement.send(m.BeatSeen(("a", "b")))
        cluster.placement.tick(10)
    assert {again.metadata.uid, other.metadata.uid} <= cluster.placement.binds().keys()


def test_a_non_borrowing_pod_is_not_migrated() -> None:
    cluster, wants = fragmented()
    cluster.placement.facts(build.queues("{queues: [{name: q}], within_guarantee_from: 0}"))
    assert "guarantee by policy" in refused(cluster, moves(cluster, wants, "x"))


def test_no_pod_is_migrated_beyond_the_beneficiarys_quota() -> None:
    label = {"kerf.dev/queue": "q"}
    cluster, wants = fragmented(x=owned("x", labels=label), y=owned("y", labels=label))
    wants = build.gpu_pod("more", gpus=2, labels=label)
    cluster.wait(wants)
    cluster.placement.facts(build.queues("queues: [{name: q, limit: {gpus: 3}}]"))
    assert "would exceed the quota" in refused(cluster, moves(cluster, wants, "x"))


def test_no_pod_is_migrated_without_need() -> None:
    cluster, wants = fragmented()
    plan = moves(cluster, wants, "x", "y", to=cluster.bound["y"].spec.node_name)
    assert "would fit without preempting team/y" in refused(cluster, plan)


def with_targets(plan: Plan, *to: str) -> Plan:
    """Returns the plan with its victims moving to these nodes."""
    moved = (
        msgspec.structs.replace(victim, action="move", to=node) for victim, node in zip(plan.victims, to, strict=True)
    )
    return msgspec.structs.replace(plan, consolidates=True, victims=tuple(moved))


def test_an_early_replacement_gets_its_place_when_it_is_free() -> None:
    """Its target is still occupied by a pod that the same plan migrates.

    Pending pods of higher priority get none of it.
    """
    cluster = empty_cluster("a", "b", "c")
    cluster.run_on("a", owned("x"))
    cluster.run_on("b", owned("y"), owned("k"))
    cluster.run_on("c", owned("l"))
    wants = build.gpu_pod("wants", gpus=2)
    cluster.wait(wants)
    assert cluster.propose(with_targets(cluster.plan("x", "y", to=(wants,), nodes=("a",)), "b", "c")).ok
    rival, again, other = build.gpu_pod("rival", gpus=1, priority=1000), owned("x", number=1), owned("y", number=1)
    cluster.wait(rival)
    cluster.release("x")
    cluster.wait(again)
    held = cluster.placement.core.book.pods[cluster.bound["y"].metadata.uid].grant_id
    cluster.placement.gone(cluster.bound["y"])
    cluster.placement.facts(other)
    assert cluster.placement.binds()[other.metadata.uid].node == "c"
    cluster.wait(again)
    cluster.placement.send(m.ReleaseSeen("b", held))
    binds = cluster.placement.binds()
    assert (binds[again.metadata.uid].node, binds[wants.metadata.uid].node) == ("b", "a")
    assert rival.metadata.uid not in binds
    assert cluster.placement.core.book.overbooked() == []


def test_a_replacement_has_its_place_kept_while_its_volume_is_made_there() -> None:
    """Its place was booked once more at each change of the book, and its volume's claim was never given the node."""
    cluster, wants = fragmented(x=owned("x", requests={"cpu": "4"}))
    placement, there = cluster.placement, cluster.bound["y"].spec.node_name
    placement.facts(build.queues("queues: [{name: team}]"), LATE, claim("data"))
    assert cluster.propose(moves(cluster, wants, "x")).ok
    cluster.release("x")
    mounts = (Volume(name="data", persistent_volume_claim=PvcSource(claim_name="data")),)
    again = owned("x", number=1, requests={"cpu": "4"}, volumes=mounts)
    rival = build.gpu_pod("rival", gpus=1, priority=1000)
    cluster.wait(again)
    cluster.wait(rival)
    ordered = [one for one in placement.patches() if isinstance(one, SelectNode)]
    assert [(one.claim, one.node) for one in ordered] == [("data", there)]
    for seconds in (60.0, 1.0):  # beyond the plan's deadline
        placement.tick(seconds)
        placement.send(m.BeatSeen(("a", "b")))
    placement.facts(volume("pv", of="data", node=there), claim("data", volume="pv"))
    placement.tick(1.0)
    assert (cluster.node_of(again), cluster.node_of(rival)) == (there, "")


def test_an_unclaimed_place_is_released_at_the_deadline() -> None:
    cluster, wants = fragmented()
    there = cluster.bound["y"].spec.node_name
    assert cluster.propose(moves(cluster, wants, "x")).ok
    cluster.release("x")
    rival = build.gpu_pod("rival", gpus=1)
    cluster.wait(rival)
    for _ in range(7):
        cluster.placement.send(m.BeatSeen(("a", "b")))
        cluster.placement.tick(10)
    assert cluster.node_of(rival) == there


def test_a_migration_on_the_same_node_uses_another_gpu() -> None:
    """Two halves are put together; the place of the second goes to the pending pod and to no other before."""
    cluster = empty_cluster("a")
    for name, pod in (
        ("x", owned("x", gpus=0, memory="45Gi")),
        ("y", owned("y", gpus=0, memory="45Gi")),
        ("u", owned("u", gpus=0, memory="30Gi")),
        ("v", owned("v", gpus=0, memory="30Gi")),
    ):
        assert cluster.run(pod).metadata.name == name
    for name in ("x", "y"):
        cluster.release(name)
    wants = build.gpu_pod("wants", gpus=1)
    cluster.wait(wants)
    plan = with_targets(cluster.plan("v", to=(wants,)), "a")
    assert cluster.propose(plan).ok
    again = owned("v", number=1, gpus=0, memory="30Gi")
    cluster.placement.send(m.FactsSeen((Gone(object=cluster.bound["v"]),)))  # its node has not given it back yet
    cluster.placement.facts(again)
    stays = cluster.placement.core.book.pods["uid-team-u-0"].grant_id
    moved = decode_grant(cluster.placement.binds()[again.metadata.uid].grant)
    assert _gpus(moved.containers) == _gpus(cluster.placement.core.book.grants[stays].grant.containers)
    assert wants.metadata.uid not in cluster.placement.binds()
    cluster.placement.send(m.ReleaseSeen("a", plan.victims[0].grant_id))
    assert cluster.placement.binds()[wants.metadata.uid].node == "a"
    assert cluster.placement.core.book.overbooked() == []


def _gpus(containers: Any) -> set[str]:
    return {share.uuid for part in containers.values() for share in part.gpus}


def test_two_replacements_of_one_job_get_one_place_each() -> None:
    """Another pod of that job waits as long as no further pod of it has ended."""
    cluster = empty_cluster("a", "b", "c")
    cluster.run_on("a", owned("x", "job"), owned("y", "job"))
    cluster.run_on("b", owned("f"))
    cluster.run_on("c", owned("g"))
    wants = build.gpu_pod("wants", gpus=2)
    cluster.wait(wants)
    assert cluster.propose(with_targets(cluster.plan("x", "y", to=(wants,), nodes=("a",)), "b", "c")).ok
    third = owned("z", "job")
    cluster.wait(third)
    nodes = []
    for name in ("x", "y"):
        cluster.release(name)
        again = owned(name, "job", number=1)
        cluster.placement.facts(again)
        nodes.append(cluster.placement.binds()[again.metadata.uid].node)
    assert sorted(nodes) == ["b", "c"]
    assert cluster.placement.binds()[wants.metadata.uid].node == "a"
    assert third.metadata.uid not in cluster.placement.binds()


@pytest.mark.parametrize("ending", [False, True])
def test_a_cancelled_plan_keeps_only_the_places_of_evicted_pods(ending: bool) -> None:
    cluster, wants = fragmented()
    assert cluster.propose(moves(cluster, wants, "x")).ok
    if ending:
        cluster.placement.facts(build.newer(cluster.bound["x"], deletion_timestamp=DELETED))
    cluster.placement.send(m.AbandonAsked("plan", "why not"))
    kept = [key for key in cluster.placement.core.book.digest() if key.startswith("grant/reserved/")]
    assert len(kept) == ending
