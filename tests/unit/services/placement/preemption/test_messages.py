"""What users see during a preemption: Events, and figures of reserved capacity."""

from __future__ import annotations

import msgspec

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries.reader import inspect, queues, status
from shared.contracts.commands import AnnounceEvent
from shared.contracts.events import PreemptionAbandoned
from shared.contracts.queries import InspectGpu, InspectQuery, StatusQuery
from shared.model.grant import ContainerGrant, GpuShare, Grant
from tests.support import build
from tests.support.harness.proposals import Proposals, full_cluster, high, low
from tests.support.whatif import time_of, when, why

GPU_MIB = 81_920


def reserved() -> Proposals:
    """A place for `high` is reserved where low0 runs, which has not ended."""
    cluster = full_cluster()
    cluster.wait(high())
    assert cluster.propose(cluster.plan("low0")).ok
    return cluster


def end(cluster: Proposals, in_s: int) -> None:
    """Deletes the victim with `in_s` seconds left of its grace period."""
    cluster.placement.facts(build.newer(cluster.bound["low0"], deletion_timestamp=time_of(-in_s)))


def gpu_of_victim(cluster: Proposals) -> InspectGpu:
    (node,) = finish(inspect(cluster.placement.core, InspectQuery())).nodes
    return next(gpu for gpu in node.gpus if any(pod.name == "low0" for pod in gpu.pods))


def test_reserved_capacity_is_not_allocated() -> None:
    cluster = reserved()
    gpu = gpu_of_victim(cluster)
    assert (gpu.allocated_memory_mib, gpu.allocated_compute_milli, gpu.containers, gpu.reserved_mib) == (
        GPU_MIB,
        1000,
        1,
        GPU_MIB,
    )
    assert [(pod.name, pod.state) for pod in gpu.pods] == [("low0", "bound"), ("high", "reserved")]
    answer = status(cluster.placement.core, StatusQuery(), leader=True)
    assert (answer.gpu_milli_allocated, answer.gpu_memory_mib_allocated) == (
        answer.gpu_milli_total,
        answer.gpu_memory_mib_total,
    )


def test_reserved_capacity_is_shown_beside_a_queues_use_and_counts_against_its_limit() -> None:
    cluster = full_cluster()
    cluster.placement.facts(build.queues("queues: [{name: team, limit: {gpus: 3}}]"))
    cluster.wait(high())
    assert cluster.propose(cluster.plan("low0")).ok
    (team,) = queues(cluster.placement.core).queues
    assert (team.gpu_milli_used, team.gpu_milli_reserved) == (2000, 1000)
    cluster.wait(high("other"))
    assert why(cluster.placement, "other").sentence.startswith("queue team uses 3 GPUs of its limit of 3 GPUs")


def test_a_new_policy_counts_reservations_in_the_queue_of_the_pod() -> None:
    """By the label of the pod, not by its namespace; the pod is in no list of pods."""
    cluster = full_cluster()
    cluster.placement.facts(build.queues("queues: [{name: team}, {name: a}]"))
    cluster.wait(high(labels={"kerf.dev/queue": "a"}))
    cluster.placement.facts(
        build.queues("queues: [{name: team, guaranteed: {gpus: 1}}, {name: a, guaranteed: {gpus: 1}}]")
    )
    assert cluster.propose(cluster.plan("low0")).ok
    before = queues(cluster.placement.core).queues
    cluster.placement.facts(
        build.queues("queues: [{name: team, guaranteed: {gpus: 1}}, {name: a, guaranteed: {gpus: 1}}, {name: b}]")
    )
    after = queues(cluster.placement.core).queues
    assert [q.gpu_milli_reserved for q in before if q.name == "a"] == [1000]
    assert [q for q in after if q.name != "b"] == list(before)


def test_why_names_the_reservation_and_no_pending_pod_as_holder() -> None:
    cluster = reserved()
    cluster.wait(low("rival"))
    gpu = next(gpu for gpu in why(cluster.placement, "rival").nodes[0].gpus if gpu.kept_for)
    assert (gpu.free_memory_mib, gpu.free_compute_milli) == (0, 0)
    assert gpu.holders == ("team/low0",)
    assert gpu.kept_for == ("team/high",)
    assert gpu.missing == "needs the whole GPU, 1 container(s) are on it; a place on it is kept for a plan"


def test_when_counts_terminating_pods_and_no_reservation() -> None:
    cluster = reserved()
    end(cluster, 600)
    answer = when(cluster.placement, "high")
    assert (answer.state, answer.in_s, answer.without_end) == ("known", 600, 1)
    assert [(end.name, end.by) for end in answer.counts_on] == [("low0", "deletion")]
    assert "pods that are deleted are gone when their grace period is over, or before" in answer.assumptions
    cluster.wait(rival := low("rival"))
    assert when(cluster.placement, "rival").state == "unknown", f"what low0 gives back is not {rival.metadata.name}'s"
    assert cluster.placement.core.book.nodes["n"].by_uuid[gpu_of_victim(cluster).uuid].kept == 1, (
        "a question changes nothing"
    )
    cluster.placement.send(m.AbandonAsked("plan", "no more"))
    assert not any(state.kept_for for state in cluster.placement.core.book.nodes["n"].pods.values()), (
        "nor the reservation"
    )


def test_when_does_not_count_a_terminating_pod_that_is_stuck() -> None:
    cluster = reserved()
    end(cluster, -600)
    assert when(cluster.placement, "high").state == "unknown"


def told(cluster: Proposals, reason: str) -> list[tuple[str, str, str]]:
    """Returns the Events on pods so far: pod name, type and note."""
    return [
        (p.name, p.type, p.note)
        for p in cluster.placement.patches()
        if isinstance(p, AnnounceEvent) and p.reason == reason
    ]


def test_the_beneficiarys_event_names_victims_actions_and_price() -> None:
    cluster = reserved()
    ((name, kind, note),) = told(cluster, "PreemptionStarted")
    assert (name, kind) == ("high", "Normal")
    assert (
        note == "a place is reserved for it on n while other pods are preempted: team/low0 is evicted. "
        "1 pod would be evicted and lose 0 GPU-seconds (plan plan)"
    )


def test_the_first_member_of_a_gang_gets_the_event() -> None:
    cluster = full_cluster("a", "b")
    gang = [high(f"g{i}", annotations={"kerf.dev/gang": "train", "kerf.dev/gang-size": "2"}) for i in range(2)]
    cluster.wait(*gang)
    assert cluster.propose(cluster.plan(cluster.on("a")[0], cluster.on("b")[0], to=tuple(gang))).ok
    ((_, _, note),) = told(cluster, "PreemptionStarted")
    assert note.startswith("a place is reserved for it and 1 more of its gang on a while")


def test_a_cancelled_plan_is_reported_on_beneficiary_and_terminating_victims() -> None:
    cluster = full_cluster()
    cluster.wait(wants := high(gpus=2))
    assert cluster.propose(cluster.plan("low0", "low1", to=(wants,))).ok
    cluster.placement.facts(build.newer(cluster.bound["low0"], deletion_timestamp=time_of(-600)))
    cluster.placement.send(m.AbandonAsked("plan", "a budget said no"))
    assert told(cluster, "PreemptionCancelled") == [
        ("high", "Warning", "the reservation is cancelled: a budget said no (plan plan)"),
        ("low0", "Warning", "eviction continues, but plan plan for team/high was cancelled: a budget said no"),
    ]


def test_a_pod_that_is_not_pending_any_more_gets_no_event() -> None:
    cluster = reserved()
    cluster.placement.gone(high())
    assert cluster.placement.events(PreemptionAbandoned)
    assert told(cluster, "PreemptionCancelled") == []


def test_a_plan_is_published_once_per_concerned_namespace() -> None:
    cluster = full_cluster()
    cluster.wait(wants := high())
    plan = cluster.plan("low0", "low1", to=(wants,))
    away = msgspec.structs.replace(plan.victims[1], namespace="theirs")
    both = msgspec.structs.replace(plan, victims=(plan.victims[0], away))
    assert both.concerns() == {"team": wants.metadata.uid, "theirs": away.uid}


def test_why_names_the_dry_run_command_if_pods_of_lower_priority_run() -> None:
    cluster = full_cluster()
    ask = "kerf preempt --dry-run team/{} says which pods would be preempted for it, or why none would"
    cluster.wait(wants := high(), low("equal"), high("meek", preemption_policy="Never"))
    assert ask.format("high") in why(cluster.placement, "high").helps
    assert ask.format("equal") not in why(cluster.placement, "equal").helps
    assert ask.format("meek") not in why(cluster.placement, "meek").helps
    assert cluster.propose(cluster.plan("low0", to=(wants,))).ok
    assert ask.format("high") not in why(cluster.placement, "high").helps, "a plan exists"


def test_why_names_the_dry_run_command_for_the_launcher_of_a_gang_too() -> None:
    """It needs no GPU, and waits for those of its workers."""
    cluster, notes = full_cluster(), {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    cluster.wait(build.pod("launcher", priority=100, annotations=notes), high("worker", annotations=notes))
    ask = "kerf preempt --dry-run team/launcher says which pods would be preempted for it, or why none would"
    assert ask in why(cluster.placement, "launcher").helps


def test_reserved_gpus_are_described_differently_from_allocated_ones() -> None:
    """Both have exactly the same free capacity."""
    cluster = full_cluster("full")
    cluster.placement.nodes("kept", gpus=2)
    grant = Grant(
        grant_id="reserved/p/u",
        term=1,
        containers={
            "c": ContainerGrant(
                strategy="exclusive",
                gpus=tuple(
                    GpuShare(node="kept", uuid=f"kept-gpu-{i}", memory_mib=GPU_MIB, compute_milli=1000)
                    for i in range(2)
                ),
            )
        },
    )
    book = cluster.placement.core.book
    book.reserve(next(iter(book.pods.values())).placeholder("reserved/p/u"), "kept", grant)
    cluster.wait(low("rival"))
    said = {node.node: node.reasons[0].sentence for node in why(cluster.placement, "rival").nodes}
    assert said["full"].endswith("needs the whole GPU, 1 container(s) are on it")
    assert said["kept"].endswith("needs the whole GPU, part of it is taken; a place on it is kept for a plan")
