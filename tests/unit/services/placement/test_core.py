"""Placement's protocol, rule by rule."""

from __future__ import annotations

import msgspec
import pytest

from services.placement import messages as m
from shared.contracts.commands import Answer, ReportPending, TouchPod
from shared.contracts.events import GrantEnded, PlacementDecided, PlacementRejected, PodBound
from shared.contracts.log import DecisionBatch, ReadyRecord
from shared.contracts.node_commands import LiveSlice, NodeSyncAnswer
from shared.model.grant import Grant, decode_grant
from shared.model.objects import Condition, PodStatus
from tests.support import build
from tests.support.leader import Leader, only

HALF = {"memory": "40Gi"}


def test_no_node_releases_grants_of_another_node() -> None:
    """R6. All agents share one user on the bus, so the name of a node in a message is only the sender's claim."""
    leader = Leader().nodes("n", "other", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    leader.bind(pod)
    (grant_id,) = leader.core.book.grants
    leader.send(m.ReleaseSeen("other" if leader.binds()[pod.metadata.uid].node == "n" else "n", grant_id))
    assert list(leader.core.book.grants) == [grant_id]


def test_a_decision_is_in_the_log_before_its_binding_goes_out() -> None:
    """R2"""
    leader = Leader(build.node("n")).nodes("n")
    leader.answer = False
    said = leader.facts(build.gpu_pod("p", **HALF))
    assert [type(c) for c in said] == [m.Append]
    said = leader.send(m.Appended(sequence=500))
    assert only(said, m.SendBinds)[0].sequence == 500
    assert decode_grant(only(said, m.SendBinds)[0].binds[0].grant).sequence == 500


def test_a_hold_that_the_log_does_not_have_yet_is_not_sent_however_long_that_takes() -> None:
    """R2"""
    leader = Leader().nodes("n")
    leader.answer = False
    leader.facts(build.gpu_pod("p", **HALF))
    assert only(leader.tick(60.0), m.SendBinds) == []
    leader.send(m.Appended(500))
    assert len(only(leader.tick(60.0), m.SendBinds)) == 1


def test_one_append_is_in_flight_at_a_time_while_the_next_batch_gathers() -> None:
    """R1"""
    leader = Leader(build.node("n")).nodes("n")
    leader.answer = False
    assert len(only(leader.facts(build.gpu_pod("a", **HALF)), m.Append)) == 1
    assert only(leader.facts(build.gpu_pod("b", **HALF), build.gpu_pod("c", **HALF)), m.Append) == []
    assert [c.seconds > 0 for c in only(leader.send(m.Appended(500)), m.Later)] == [True]
    leader.now += 0.01
    batch = only(leader.send(m.Wake()), m.Append)[0].record
    assert isinstance(batch, DecisionBatch)
    assert [d.name for d in batch.decisions] == ["b", "c"]


def test_the_binding_names_uid_and_resource_version_of_the_pod_as_decided() -> None:
    """R3"""
    leader = Leader().nodes("n")
    pod = build.gpu_pod("p", **HALF)
    leader.facts(pod)
    bind = leader.binds()[pod.metadata.uid]
    assert (bind.uid, bind.resource_version) == (pod.metadata.uid, pod.metadata.resource_version)


@pytest.mark.parametrize("outcome", ["conflict", "gone", "unknown", "throttled", "refused", "no-node"])
def test_no_answer_to_a_binding_ends_its_hold(outcome: str) -> None:
    """R4"""
    leader = Leader().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    leader.send(
        m.BindsAnswered(
            (Answer(uid=pod.metadata.uid, outcome=outcome, resource_version=pod.metadata.resource_version),)
        )
    )  # type: ignore[arg-type]
    leader.tick(1000)
    assert pod.metadata.uid in leader.core.holds
    assert leader.place(build.gpu_pod("q", gpus=1)) == {}


@pytest.mark.parametrize("outcome", ["refused", "no-node"])
def test_a_binding_that_was_certainly_not_applied_is_decided_again_after_a_touch(outcome: str) -> None:
    leader = Leader().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    leader.send(
        m.BindsAnswered(
            (Answer(uid=pod.metadata.uid, outcome=outcome, resource_version=pod.metadata.resource_version),)
        )
    )  # type: ignore[arg-type]
    assert [p.uid for p in leader.patches() if isinstance(p, TouchPod)] == [pod.metadata.uid]
    touched = build.newer(pod)
    leader.facts(touched)
    assert leader.core.holds == {}
    leader.tick(2.0)
    assert leader.binds()[pod.metadata.uid].resource_version == touched.metadata.resource_version


@pytest.mark.parametrize("outcome", ["refused", "no-node", "unknown", "throttled"])
def test_an_answer_to_an_older_binding_does_not_affect_the_current_hold(outcome: str) -> None:
    """It was on its way while the pod changed. A touch for it would void a decision that is good."""
    leader = Leader().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    leader.facts(build.newer(pod))
    before = leader.core.holds[pod.metadata.uid].sent_at
    uid, version = pod.metadata.uid, pod.metadata.resource_version
    late = Answer(uid=uid, outcome=outcome, resource_version=version)  # type: ignore[arg-type]
    leader.send(m.BindsAnswered((late,)))
    assert [p for p in leader.patches() if isinstance(p, TouchPod)] == []
    assert leader.core.holds[pod.metadata.uid].sent_at == before


def test_a_pod_seen_at_another_version_unbound_voids_its_hold_and_is_decided_at_the_new_one() -> None:
    leader = Leader().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    edited = build.newer(pod, labels={"a": "b"})
    leader.facts(edited)
    assert leader.binds()[pod.metadata.uid].resource_version == edited.metadata.resource_version
    assert len(leader.core.book.grants) == 1


def test_a_hold_without_gpus_is_voided_by_another_version_too() -> None:
    """Found by tests/sim: it was resent for ever."""
    leader = Leader().nodes("n")
    pod = build.pod("p", requests={"cpu": "1"})
    leader.facts(pod)
    touched = build.newer(pod, annotations={"kerf.dev/touched": "1"})
    leader.facts(touched)
    assert leader.binds()[pod.metadata.uid].resource_version == touched.metadata.resource_version
    assert leader.core.book.nodes["n"].cpu_used == 1000


def test_a_hold_voided_before_its_append_is_acknowledged_sends_no_binding() -> None:
    leader = Leader().nodes("n", gpus=1)
    leader.answer = False
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    leader.gone(pod)
    assert only(leader.send(m.Appended(500)), m.SendBinds) == []


def test_a_bound_pods_grant_is_sent_to_its_node_until_the_node_answers() -> None:
    leader = Leader().nodes("n")
    pod = build.gpu_pod("p", **HALF)
    leader.facts(pod)
    leader.answer = False
    leader.bind(pod)
    sent = only(leader.said, m.SendGrant)
    assert len(sent) == 1
    again = only(leader.tick(4.0), m.SendGrant)
    assert again == sent
    leader.send(m.GrantAcknowledged("n", sent[0].grant.grant.grant_id))
    assert only(leader.tick(4.0), m.SendGrant) == []


def test_a_deleted_pod_frees_its_cpu_immediately_and_its_gpu_only_when_the_node_releases_it() -> None:
    """R6"""
    leader = Leader().nodes("n", gpus=1)
    pod = leader_bound(leader, build.gpu_pod("p", gpus=1))
    said = leader.gone(pod)
    assert leader.core.book.nodes["n"].cpu_used == 0
    release = only(said, m.SendRelease)[0].release
    assert leader.place(build.gpu_pod("q", gpus=1)) == {}
    said = leader.send(m.ReleaseSeen("n", release.grant_id))
    assert only(said, m.SendReleasesSeen)[0].grant_ids == (release.grant_id,)
    assert "uid-team-q" in leader.binds()
    assert [e.grant_id for e in leader.events(GrantEnded)] == [release.grant_id]


def test_a_terminal_phase_alone_frees_no_gpu() -> None:
    leader = Leader().nodes("n", gpus=1)
    pod = leader_bound(leader, build.gpu_pod("p", gpus=1))
    leader.facts(build.newer(pod, phase="Succeeded"))
    assert leader.place(build.gpu_pod("q", gpus=1)) == {}
    assert leader.core.book.nodes["n"].cpu_used == 0


def test_a_released_grant_stays_released_while_its_pod_lives_on() -> None:
    leader = Leader().nodes("n", gpus=1)
    pod = leader_bound(leader, build.gpu_pod("p", gpus=1))
    leader.send(m.ReleaseSeen("n", decode_grant(pod.metadata.annotations["kerf.dev/grant"]).grant_id))
    leader.facts(build.newer(pod, phase="Running"))
    assert leader.core.book.grants == {}


def test_a_hold_of_a_pod_that_vanished_unseen_is_released_only_by_the_node() -> None:
    """Its absence was found by comparing lists; the pod may have been bound and started in between."""
    leader = Leader().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    leader.gone(pod, certain=False)
    assert leader.place(build.gpu_pod("q", gpus=1)) == {}
    release = only(leader.said, m.SendRelease)[0].release
    leader.send(m.ReleaseSeen("n", release.grant_id))
    assert "uid-team-q" in leader.binds()


def test_a_hold_of_a_pod_that_was_deleted_unbound_is_free_immediately() -> None:
    leader = Leader().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    leader.gone(pod)
    assert leader.place(build.gpu_pod("q", gpus=1)) == {"q": "n"}


def test_a_release_before_the_bound_pod_is_seen_waits_until_the_node_repeats_it() -> None:
    leader = Leader().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    grant_id = next(iter(leader.core.book.grants))
    assert only(leader.send(m.ReleaseSeen("n", grant_id)), m.SendReleasesSeen) == []
    assert grant_id in leader.core.book.grants


def test_the_same_grant_on_two_pods_is_never_made() -> None:
    leader = Leader().nodes("n", "o")
    leader.facts(*[build.gpu_pod(f"p{i}", **HALF) for i in range(32)])
    ids = [d.grant.grant_id for _, r in leader.log if isinstance(r, DecisionBatch) for d in r.decisions if d.grant]
    assert len(ids) == 32
    assert len(set(ids)) == 32


# --- recovery (R5) ----------------------------------------------------------------------------------------------


def test_without_a_complete_log_every_pending_pod_is_touched_before_anything_is_decided() -> None:
    pod, node = build.gpu_pod("p", **HALF), build.node("n")
    leader = Leader(node, pod)
    leader.send(m.InventorySeen(build.inventory("n")))
    assert [p.uid for p in leader.patches() if isinstance(p, TouchPod)] == [pod.metadata.uid]
    assert leader.core.phase == "touching"
    assert leader.binds() == {}
    touched = build.newer(pod)
    leader.facts(touched)
    assert [type(r) for _, r in leader.log] == [ReadyRecord, DecisionBatch]
    assert leader.binds()[pod.metadata.uid].resource_version == touched.metadata.resource_version


def test_a_touch_is_repeated_until_the_pod_is_seen_to_have_moved() -> None:
    leader = Leader(build.gpu_pod("p", **HALF))
    first = len(leader.patches())
    leader.tick(3.0)
    assert len(leader.patches()) == first + 1


def test_decisions_of_a_complete_log_are_re_adopted_and_resent_if_the_pods_version_is_unchanged() -> None:
    first = Leader(term=100).nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    first.facts(pod)
    second = Leader(build.node("n"), pod, term=200, records=tuple(first.log))
    assert second.core.stats.readopted == 1
    sent = [b for c in second.said if isinstance(c, m.SendBinds) for b in c.binds]
    assert [(b.uid, b.resource_version) for b in sent] == [(pod.metadata.uid, pod.metadata.resource_version)]
    assert second.core.book.digest() == first.core.book.digest()


def test_an_append_that_was_repeated_behind_a_younger_decision_does_not_hide_it() -> None:
    """A record with a lost answer may be in the log twice, the second time after what was decided since."""
    first = Leader(term=100).nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    first.facts(pod)
    moved = build.newer(pod)
    first.facts(moved)
    records = [*first.log, (first.log[-1][0] + 1, next(r for _, r in first.log if isinstance(r, DecisionBatch)))]
    assert len([r for _, r in records if isinstance(r, DecisionBatch)]) == 3
    second = Leader(build.node("n"), moved, term=200, records=tuple(records))
    assert second.core.stats.readopted == 1
    assert second.core.book.digest() == first.core.book.digest()


def test_open_holds_are_logged_again_under_the_new_term_before_ready() -> None:
    first = Leader(term=100).nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    first.facts(pod)
    second = Leader(build.node("n"), pod, term=200, records=tuple(first.log))
    kinds = [type(r) for _, r in second.log]
    assert kinds == [DecisionBatch, ReadyRecord]
    assert second.log[0][1].term == 200


def test_a_logged_decision_is_not_re_adopted_if_the_pods_version_has_changed() -> None:
    first = Leader(term=100).nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    first.facts(pod)
    second = Leader(build.node("n"), build.newer(pod), term=200, records=tuple(first.log))
    assert second.core.stats.readopted == 0


def test_nothing_new_goes_to_a_node_before_it_has_answered_this_terms_sync() -> None:
    leader = Leader(build.node("n"))
    leader.answer = False
    leader.send(m.InventorySeen(build.inventory("n")))
    leader.answer = True
    assert leader.place(build.gpu_pod("p", **HALF)) == {}
    leader.send(m.SyncAnswered(NodeSyncAnswer(node="n", boot_id="boot-1", term=100, accepted=True)))
    assert "uid-team-p" in leader.binds()


def test_a_slice_that_runs_and_is_unknown_occupies_its_gpu_until_released() -> None:
    leader = Leader(build.node("n"))
    leader.answer = False
    leader.send(m.InventorySeen(build.inventory("n", gpus=1)))
    leader.answer = True
    live = LiveSlice(
        uid="x",
        namespace="old",
        name="ghost",
        container="c",
        grant_id="1-1",
        strategy="exclusive",
        gpus={"n-gpu-0": (81920, 1000)},
    )
    leader.send(m.SyncAnswered(NodeSyncAnswer(node="n", boot_id="boot-1", term=100, accepted=True, live=(live,))))
    assert leader.place(build.gpu_pod("p", gpus=1)) == {}
    leader.send(m.ReleaseSeen("n", "1-1"))
    assert "uid-team-p" in leader.binds()


def test_a_node_that_follows_a_newer_term_makes_the_leader_check_the_log() -> None:
    """Its message alone ends no session; nor do many messages query the log more often than once a second."""
    leader = Leader().nodes("n")
    refusal = m.SyncAnswered(NodeSyncAnswer(node="n", boot_id="boot-1", term=101, accepted=False))
    assert len(only(leader.send(refusal), m.CheckTerm)) == 1
    assert only(leader.send(refusal), m.CheckTerm) == []
    assert leader.place(build.gpu_pod("p", **HALF)) == {}, "nothing new goes to a node that refuses this term"
    leader.tick(4.0)
    assert "uid-team-p" in leader.binds(), "the node is asked again, and accepts"


def test_a_silent_agent_gets_nothing_new_until_it_beats_again() -> None:
    leader = Leader().nodes("n", gpus=1)
    leader.tick(30.0)
    leader.tick(0.1)
    assert leader.place(build.gpu_pod("p", gpus=1)) == {}
    leader.send(m.BeatSeen(("n",)))
    assert "uid-team-p" in leader.binds()


def test_a_renewed_term_logs_open_holds_and_ready_again() -> None:
    leader = Leader().nodes("n", gpus=1)
    leader.facts(build.gpu_pod("p", gpus=1))
    before = len(leader.log)
    leader.send(m.TermRenewed(term=900))
    assert [type(r) for _, r in leader.log[before:]] == [DecisionBatch, ReadyRecord]
    assert {r.term for _, r in leader.log[before:]} == {900}


def test_no_term_is_renewed_while_an_append_is_under_way() -> None:
    """The append names the old term: it would be refused, and end the session, or be taken for one of the new term."""
    leader = Leader().nodes("n")
    assert leader.core.may_renew
    leader.answer = False
    leader.facts(build.gpu_pod("p", **HALF))
    assert not leader.core.may_renew
    leader.send(m.Appended(500))
    assert leader.core.may_renew


def test_no_term_is_renewed_before_the_session_leads() -> None:
    """A ready of a renewed term would say that the log is complete, while pods are still to be touched."""
    pod = build.gpu_pod("p", **HALF)
    leader = Leader(pod)
    assert not leader.core.may_renew
    leader.facts(build.newer(pod))
    assert leader.core.may_renew


def test_unanswered_messages_to_a_node_are_sent_again_under_the_renewed_term() -> None:
    """The node has learned the new term by its sync: it refuses the old one, and the shares would never be freed."""
    leader = Leader().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    bound = leader.bind(pod)
    leader.gone(bound)
    leader.send(m.TermRenewed(term=900))
    assert {c.release.term for c in only(leader.tick(5.0), m.SendRelease)} == {900}


# --- what users see ---------------------------------------------------------------------------------------------


def test_decided_is_published_with_its_log_sequence_once_the_log_has_it() -> None:
    leader = Leader().nodes("n")
    leader.answer = False
    leader.facts(build.gpu_pod("p", **HALF))
    assert leader.events(PlacementDecided) == []
    leader.send(m.Appended(777))
    assert [e.sequence for e in leader.events(PlacementDecided)] == [777]


def test_bound_is_published_once() -> None:
    leader = Leader().nodes("n")
    pod = leader_bound(leader, build.gpu_pod("p", **HALF))
    leader.facts(build.newer(pod, phase="Running"))
    assert [e.node for e in leader.events(PodBound)] == ["n"]


def test_a_pod_that_fits_nowhere_is_rejected_once_with_a_reason_on_the_pod() -> None:
    leader = Leader().nodes("n", gpus=1)
    leader.facts(build.gpu_pod("p", gpus=2))
    for _ in range(5):
        leader.tick()
    assert len(leader.events(PlacementRejected)) == 1
    report = [p for p in leader.patches() if isinstance(p, ReportPending)]
    assert "needs 2 GPUs on one node, the node has 1" in report[0].message


def test_an_invalid_pod_is_refused_by_name_and_harms_no_other() -> None:
    leader = Leader().nodes("n")
    bad = build.pod("bad", limits={"kerf.dev/gpu-memory": "sixteen"})
    assert leader.place(bad, build.gpu_pod("good", **HALF)) == {"good": "n"}
    assert "sixteen" in leader.events(PlacementRejected)[0].explanation.sentence


def test_holds_are_capped_and_continue_when_bindings_are_seen() -> None:
    leader = Leader(max_holds=2).nodes("n")
    pods = [build.gpu_pod(f"p{i}", memory="1Gi") for i in range(3)]
    leader.facts(*pods)
    assert len(leader.binds()) == 2
    leader.bind(pods[0])
    assert len(leader.binds()) == 3


def test_a_deleted_node_frees_grants_that_it_had_not_released() -> None:
    leader = Leader().nodes("n", gpus=1)
    pod = leader_bound(leader, build.gpu_pod("p", gpus=1))
    leader.gone(pod)
    assert len(leader.core.book.grants) == 1
    leader.gone(build.node("n"))
    assert leader.core.book.grants == {}


def leader_bound(leader: Leader, pod: object) -> object:
    leader.facts(pod)
    return leader.bind(pod)  # type: ignore[arg-type]


def test_a_pod_with_a_scheduling_gate_waits_until_the_gate_is_removed() -> None:
    from shared.model.objects import SchedulingGate

    leader = Leader().nodes("n")
    pod = build.gpu_pod("p", **HALF, scheduling_gates=(SchedulingGate(name="hold"),))
    assert leader.place(pod) == {}
    open_ = msgspec.structs.replace(build.newer(pod), spec=msgspec.structs.replace(pod.spec, scheduling_gates=()))
    assert leader.place(open_) == {"p": "n"}


def test_pods_that_wait_behind_one_of_their_shape_get_a_reason_too() -> None:
    """Only the head of an equivalence group is tried; each pod in it must get a reason."""
    leader = Leader().nodes("n", gpus=1)
    leader.facts(build.gpu_pod("a", gpus=2), build.gpu_pod("b", gpus=2))
    leader.facts(build.gpu_pod("late", gpus=2))
    for _ in range(5):
        leader.tick()
    assert sorted(e.name for e in leader.events(PlacementRejected)) == ["a", "b", "late"]
    assert leader.core.stats.rejections == 1


def test_a_pending_reason_is_repeated_until_it_is_on_its_pod() -> None:
    """A watcher that ends loses the reasons that it has not written; the event is not published again."""
    leader = Leader().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=2)
    leader.facts(pod)
    leader.tick()
    leader.tick(seconds=11)
    reports = [p for p in leader.patches() if isinstance(p, ReportPending)]
    assert len(reports) == 2
    assert reports[0].message == reports[1].message
    told = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=reports[0].message)
    seen = build.newer(pod)
    leader.facts(msgspec.structs.replace(seen, status=PodStatus(phase="Pending", conditions=(told,))))
    leader.tick(seconds=11)
    assert len([p for p in leader.patches() if isinstance(p, ReportPending)]) == 2
    assert len(leader.events(PlacementRejected)) == 1


def test_a_node_is_labelled_with_its_gpus_until_its_labels_are_seen() -> None:
    """Source 3: node labels with the GPU model, for filtering."""
    from shared.contracts.commands import LabelNode

    leader = Leader().nodes("n", gpus=4, model="NVIDIA H100 80GB")
    leader.tick()
    labels = [p for p in leader.patches() if isinstance(p, LabelNode)]
    assert len(labels) == 1
    assert (
        labels[0].labels.items()
        >= {
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB",
            "nvidia.com/gpu.count": "4",
            "nvidia.com/gpu.memory": "81920",
        }.items()
    )
    leader.facts(build.node("n", labels={k: v for k, v in labels[0].labels.items() if v}))
    leader.tick(120.0)
    assert len([p for p in leader.patches() if isinstance(p, LabelNode)]) == 1


def test_a_permanently_removed_node_is_no_longer_subscribed_to() -> None:
    leader = Leader().nodes("n1", "n2")
    leader.gone(leader.core.book.nodes["n1"].object)
    leader.send(m.AgentLost("n1"))
    leader.send(m.BeatSeen(("n1", "n2")))
    leader.tick()
    assert set(leader.core.nodes._heartbeats) == {"n2"}


def test_on_a_large_cluster_pending_reasons_are_limited_per_tick() -> None:
    leader = Leader(*(build.node(f"n{number}") for number in range(200)))
    leader.facts(*(build.gpu_pod(f"p{number}", gpus=1) for number in range(3)))

    def told() -> int:
        return sum(isinstance(c, m.Publish) and isinstance(c.event, PlacementRejected) for c in leader.said)

    leader.send(m.Tick())
    assert told() == 1
    leader.now += 0.001
    leader.send(m.Tick())
    assert told() == 1
    for _ in range(2):
        leader.now += 0.02
        leader.send(m.Tick())
    assert told() == 3


def test_a_pod_waits_while_its_annotations_leave_no_space_for_a_grant() -> None:
    leader = Leader().nodes("n", gpus=1)
    full = build.newer(build.gpu_pod("p", gpus=1), annotations_full=True)
    leader.facts(full)
    assert leader.binds() == {}
    assert set(leader.place(build.newer(full, annotations_full=False))) == {"p"}


def test_a_hold_is_revoked_at_its_node_if_its_pod_is_bound_with_another_grant() -> None:
    """The node learned of it in a sync, and nothing else would remove it there."""
    leader = Leader().nodes("n", gpus=2)
    pod = build.gpu_pod("p", gpus=1)
    leader.facts(pod)
    (decided,) = leader.core.book.grants
    leader.send(m.TermRenewed(term=leader.core.term + 50))
    other = Grant(grant_id="other", term=1, sequence=2, containers=leader.core.book.grants[decided].grant.containers)
    said = leader.facts(build.bound(pod, "n", other))
    assert [command.release.grant_id for command in only(said, m.SendRelease)] == [decided]
