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
from tests.support.harness.placement import Placement, only

HALF = {"memory": "40Gi"}


def test_no_node_releases_grants_of_another_node() -> None:
    """R6. All agents share one user on the bus, so the name of a node in a message is only the sender's claim."""
    placement = Placement().nodes("n", "other", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    placement.bind(pod)
    (grant_id,) = placement.core.book.grants
    placement.send(m.ReleaseSeen("other" if placement.binds()[pod.metadata.uid].node == "n" else "n", grant_id))
    assert list(placement.core.book.grants) == [grant_id]


def test_a_decision_is_in_the_log_before_its_binding_goes_out() -> None:
    """R2"""
    placement = Placement(build.node("n")).nodes("n")
    placement.answer = False
    said = placement.facts(build.gpu_pod("p", **HALF))
    assert [type(c) for c in said] == [m.Append]
    said = placement.send(m.Appended(sequence=500))
    assert only(said, m.SendBinds)[0].sequence == 500
    assert decode_grant(only(said, m.SendBinds)[0].binds[0].grant).sequence == 500


def test_a_hold_that_the_log_does_not_have_yet_is_not_sent_however_long_that_takes() -> None:
    """R2"""
    placement = Placement().nodes("n")
    placement.answer = False
    placement.facts(build.gpu_pod("p", **HALF))
    assert only(placement.tick(60.0), m.SendBinds) == []
    placement.send(m.Appended(500))
    assert len(only(placement.tick(60.0), m.SendBinds)) == 1


def test_one_append_is_in_flight_at_a_time_while_the_next_batch_gathers() -> None:
    """R1"""
    placement = Placement(build.node("n")).nodes("n")
    placement.answer = False
    assert len(only(placement.facts(build.gpu_pod("a", **HALF)), m.Append)) == 1
    assert only(placement.facts(build.gpu_pod("b", **HALF), build.gpu_pod("c", **HALF)), m.Append) == []
    assert [c.seconds > 0 for c in only(placement.send(m.Appended(500)), m.Later)] == [True]
    placement.now += 0.01
    batch = only(placement.send(m.Wake()), m.Append)[0].record
    assert isinstance(batch, DecisionBatch)
    assert [d.name for d in batch.decisions] == ["b", "c"]


def test_the_binding_names_uid_and_resource_version_of_the_pod_as_decided() -> None:
    """R3"""
    placement = Placement().nodes("n")
    pod = build.gpu_pod("p", **HALF)
    placement.facts(pod)
    bind = placement.binds()[pod.metadata.uid]
    assert (bind.uid, bind.resource_version) == (pod.metadata.uid, pod.metadata.resource_version)


@pytest.mark.parametrize("outcome", ["conflict", "gone", "unknown", "throttled", "refused", "no-node"])
def test_no_answer_to_a_binding_ends_its_hold(outcome: str) -> None:
    """R4"""
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    placement.send(
        m.BindsAnswered(
            (Answer(uid=pod.metadata.uid, outcome=outcome, resource_version=pod.metadata.resource_version),)
        )
    )  # type: ignore[arg-type]
    placement.tick(1000)
    assert pod.metadata.uid in placement.core.holds
    assert placement.place(build.gpu_pod("q", gpus=1)) == {}


@pytest.mark.parametrize("outcome", ["refused", "no-node"])
def test_a_binding_that_was_certainly_not_applied_is_decided_again_after_a_touch(outcome: str) -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    placement.send(
        m.BindsAnswered(
            (Answer(uid=pod.metadata.uid, outcome=outcome, resource_version=pod.metadata.resource_version),)
        )
    )  # type: ignore[arg-type]
    assert [p.uid for p in placement.patches() if isinstance(p, TouchPod)] == [pod.metadata.uid]
    touched = build.newer(pod)
    placement.facts(touched)
    assert placement.core.holds == {}
    placement.tick(2.0)
    assert placement.binds()[pod.metadata.uid].resource_version == touched.metadata.resource_version


@pytest.mark.parametrize("outcome", ["refused", "no-node", "unknown", "throttled"])
def test_an_answer_to_an_older_binding_does_not_affect_the_current_hold(outcome: str) -> None:
    """It was on its way while the pod changed. A touch for it would void a decision that is good."""
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    placement.facts(build.newer(pod))
    before = placement.core.holds[pod.metadata.uid].sent_at
    uid, version = pod.metadata.uid, pod.metadata.resource_version
    late = Answer(uid=uid, outcome=outcome, resource_version=version)  # type: ignore[arg-type]
    placement.send(m.BindsAnswered((late,)))
    assert [p for p in placement.patches() if isinstance(p, TouchPod)] == []
    assert placement.core.holds[pod.metadata.uid].sent_at == before


def test_a_pod_seen_at_another_version_unbound_voids_its_hold_and_is_decided_at_the_new_one() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    edited = build.newer(pod, labels={"a": "b"})
    placement.facts(edited)
    assert placement.binds()[pod.metadata.uid].resource_version == edited.metadata.resource_version
    assert len(placement.core.book.grants) == 1


def test_a_hold_without_gpus_is_voided_by_another_version_too() -> None:
    """Found by tests/sim: it was resent for ever."""
    placement = Placement().nodes("n")
    pod = build.pod("p", requests={"cpu": "1"})
    placement.facts(pod)
    touched = build.newer(pod, annotations={"kerf.dev/touched": "1"})
    placement.facts(touched)
    assert placement.binds()[pod.metadata.uid].resource_version == touched.metadata.resource_version
    assert placement.core.book.nodes["n"].cpu_used == 1000


def test_a_hold_voided_before_its_append_is_acknowledged_sends_no_binding() -> None:
    placement = Placement().nodes("n", gpus=1)
    placement.answer = False
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    placement.gone(pod)
    assert only(placement.send(m.Appended(500)), m.SendBinds) == []


def test_a_bound_pods_grant_is_sent_to_its_node_until_the_node_answers() -> None:
    placement = Placement().nodes("n")
    pod = build.gpu_pod("p", **HALF)
    placement.facts(pod)
    placement.answer = False
    placement.bind(pod)
    sent = only(placement.commands, m.SendGrant)
    assert len(sent) == 1
    again = only(placement.tick(4.0), m.SendGrant)
    assert again == sent
    placement.send(m.GrantAcknowledged("n", sent[0].grant.grant.grant_id))
    assert only(placement.tick(4.0), m.SendGrant) == []


def test_a_deleted_pod_frees_its_cpu_immediately_and_its_gpu_only_when_the_node_releases_it() -> None:
    """R6"""
    placement = Placement().nodes("n", gpus=1)
    pod = show_bound(placement, build.gpu_pod("p", gpus=1))
    said = placement.gone(pod)
    assert placement.core.book.nodes["n"].cpu_used == 0
    release = only(said, m.SendRelease)[0].release
    assert placement.place(build.gpu_pod("q", gpus=1)) == {}
    said = placement.send(m.ReleaseSeen("n", release.grant_id))
    assert only(said, m.SendReleasesSeen)[0].grant_ids == (release.grant_id,)
    assert "uid-team-q" in placement.binds()
    assert [e.grant_id for e in placement.events(GrantEnded)] == [release.grant_id]


def test_a_terminal_phase_alone_frees_no_gpu() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = show_bound(placement, build.gpu_pod("p", gpus=1))
    placement.facts(build.newer(pod, phase="Succeeded"))
    assert placement.place(build.gpu_pod("q", gpus=1)) == {}
    assert placement.core.book.nodes["n"].cpu_used == 0


def test_a_released_grant_stays_released_while_its_pod_lives_on() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = show_bound(placement, build.gpu_pod("p", gpus=1))
    placement.send(m.ReleaseSeen("n", decode_grant(pod.metadata.annotations["kerf.dev/grant"]).grant_id))
    placement.facts(build.newer(pod, phase="Running"))
    assert placement.core.book.grants == {}


def test_a_hold_of_a_pod_that_vanished_unseen_is_released_only_by_the_node() -> None:
    """Its absence was found by comparing lists; the pod may have been bound and started in between."""
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    placement.gone(pod, certain=False)
    assert placement.place(build.gpu_pod("q", gpus=1)) == {}
    release = only(placement.commands, m.SendRelease)[0].release
    placement.send(m.ReleaseSeen("n", release.grant_id))
    assert "uid-team-q" in placement.binds()


def test_a_hold_of_a_pod_that_was_deleted_unbound_is_free_immediately() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    placement.gone(pod)
    assert placement.place(build.gpu_pod("q", gpus=1)) == {"q": "n"}


def test_a_release_before_the_bound_pod_is_seen_waits_until_the_node_repeats_it() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    grant_id = next(iter(placement.core.book.grants))
    assert only(placement.send(m.ReleaseSeen("n", grant_id)), m.SendReleasesSeen) == []
    assert grant_id in placement.core.book.grants


def test_the_same_grant_on_two_pods_is_never_made() -> None:
    placement = Placement().nodes("n", "o")
    placement.facts(*[build.gpu_pod(f"p{i}", **HALF) for i in range(32)])
    ids = [d.grant.grant_id for _, r in placement.log if isinstance(r, DecisionBatch) for d in r.decisions if d.grant]
    assert len(ids) == 32
    assert len(set(ids)) == 32


# --- recovery (R5) ----------------------------------------------------------------------------------------------


def test_without_a_complete_log_every_pending_pod_is_touched_before_anything_is_decided() -> None:
    pod, node = build.gpu_pod("p", **HALF), build.node("n")
    placement = Placement(node, pod)
    placement.send(m.InventorySeen(build.inventory("n")))
    assert [p.uid for p in placement.patches() if isinstance(p, TouchPod)] == [pod.metadata.uid]
    assert placement.core.phase == "touching"
    assert placement.binds() == {}
    touched = build.newer(pod)
    placement.facts(touched)
    assert [type(r) for _, r in placement.log] == [ReadyRecord, DecisionBatch]
    assert placement.binds()[pod.metadata.uid].resource_version == touched.metadata.resource_version


def test_a_touch_is_repeated_until_the_pod_is_seen_to_have_moved() -> None:
    placement = Placement(build.gpu_pod("p", **HALF))
    first = len(placement.patches())
    placement.tick(3.0)
    assert len(placement.patches()) == first + 1


def test_decisions_of_a_complete_log_are_re_adopted_and_resent_if_the_pods_version_is_unchanged() -> None:
    first = Placement(term=100).nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    first.facts(pod)
    second = Placement(build.node("n"), pod, term=200, records=tuple(first.log))
    assert second.core.stats.readopted == 1
    sent = [b for c in second.commands if isinstance(c, m.SendBinds) for b in c.binds]
    assert [(b.uid, b.resource_version) for b in sent] == [(pod.metadata.uid, pod.metadata.resource_version)]
    assert second.core.book.digest() == first.core.book.digest()


def test_an_append_that_was_repeated_behind_a_younger_decision_does_not_hide_it() -> None:
    """A record with a lost answer may be in the log twice, the second time after what was decided since."""
    first = Placement(term=100).nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    first.facts(pod)
    moved = build.newer(pod)
    first.facts(moved)
    records = [*first.log, (first.log[-1][0] + 1, next(r for _, r in first.log if isinstance(r, DecisionBatch)))]
    assert len([r for _, r in records if isinstance(r, DecisionBatch)]) == 3
    second = Placement(build.node("n"), moved, term=200, records=tuple(records))
    assert second.core.stats.readopted == 1
    assert second.core.book.digest() == first.core.book.digest()


def test_open_holds_are_logged_again_under_the_new_term_before_ready() -> None:
    first = Placement(term=100).nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    first.facts(pod)
    second = Placement(build.node("n"), pod, term=200, records=tuple(first.log))
    kinds = [type(r) for _, r in second.log]
    assert kinds == [DecisionBatch, ReadyRecord]
    assert second.log[0][1].term == 200


def test_a_logged_decision_is_not_re_adopted_if_the_pods_version_has_changed() -> None:
    first = Placement(term=100).nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    first.facts(pod)
    second = Placement(build.node("n"), build.newer(pod), term=200, records=tuple(first.log))
    assert second.core.stats.readopted == 0


def test_nothing_new_goes_to_a_node_before_it_has_answered_this_terms_sync() -> None:
    placement = Placement(build.node("n"))
    placement.answer = False
    placement.send(m.InventorySeen(build.inventory("n")))
    placement.answer = True
    assert placement.place(build.gpu_pod("p", **HALF)) == {}
    placement.send(m.SyncAnswered(NodeSyncAnswer(node="n", boot_id="boot-1", term=100, accepted=True)))
    assert "uid-team-p" in placement.binds()


def test_a_slice_that_runs_and_is_unknown_occupies_its_gpu_until_released() -> None:
    placement = Placement(build.node("n"))
    placement.answer = False
    placement.send(m.InventorySeen(build.inventory("n", gpus=1)))
    placement.answer = True
    live = LiveSlice(
        uid="x",
        namespace="old",
        name="ghost",
        container="c",
        grant_id="1-1",
        strategy="exclusive",
        gpus={"n-gpu-0": (81920, 1000)},
    )
    placement.send(m.SyncAnswered(NodeSyncAnswer(node="n", boot_id="boot-1", term=100, accepted=True, live=(live,))))
    assert placement.place(build.gpu_pod("p", gpus=1)) == {}
    placement.send(m.ReleaseSeen("n", "1-1"))
    assert "uid-team-p" in placement.binds()


def test_a_node_that_follows_a_newer_term_makes_the_leader_check_the_log() -> None:
    """Its message alone ends no session; nor do many messages query the log more often than once a second."""
    placement = Placement().nodes("n")
    refusal = m.SyncAnswered(NodeSyncAnswer(node="n", boot_id="boot-1", term=101, accepted=False))
    assert len(only(placement.send(refusal), m.CheckTerm)) == 1
    assert only(placement.send(refusal), m.CheckTerm) == []
    assert placement.place(build.gpu_pod("p", **HALF)) == {}, "nothing new goes to a node that refuses this term"
    placement.tick(4.0)
    assert "uid-team-p" in placement.binds(), "the node is asked again, and accepts"


def test_a_silent_agent_gets_nothing_new_until_it_beats_again() -> None:
    placement = Placement().nodes("n", gpus=1)
    placement.tick(30.0)
    placement.tick(0.1)
    assert placement.place(build.gpu_pod("p", gpus=1)) == {}
    placement.send(m.BeatSeen(("n",)))
    assert "uid-team-p" in placement.binds()


def test_a_renewed_term_logs_open_holds_and_ready_again() -> None:
    placement = Placement().nodes("n", gpus=1)
    placement.facts(build.gpu_pod("p", gpus=1))
    before = len(placement.log)
    placement.send(m.TermRenewed(term=900))
    assert [type(r) for _, r in placement.log[before:]] == [DecisionBatch, ReadyRecord]
    assert {r.term for _, r in placement.log[before:]} == {900}


def test_no_term_is_renewed_while_an_append_is_under_way() -> None:
    """The append names the old term: it would be refused, and end the session, or be taken for one of the new term."""
    placement = Placement().nodes("n")
    assert placement.core.may_renew
    placement.answer = False
    placement.facts(build.gpu_pod("p", **HALF))
    assert not placement.core.may_renew
    placement.send(m.Appended(500))
    assert placement.core.may_renew


def test_no_term_is_renewed_before_the_session_leads() -> None:
    """A ready of a renewed term would say that the log is complete, while pods are still to be touched."""
    pod = build.gpu_pod("p", **HALF)
    placement = Placement(pod)
    assert not placement.core.may_renew
    placement.facts(build.newer(pod))
    assert placement.core.may_renew


def test_unanswered_messages_to_a_node_are_sent_again_under_the_renewed_term() -> None:
    """The node has learned the new term by its sync: it refuses the old one, and the shares would never be freed."""
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    bound = placement.bind(pod)
    placement.gone(bound)
    placement.send(m.TermRenewed(term=900))
    assert {c.release.term for c in only(placement.tick(5.0), m.SendRelease)} == {900}


# --- what users see ---------------------------------------------------------------------------------------------


def test_decided_is_published_with_its_log_sequence_once_the_log_has_it() -> None:
    placement = Placement().nodes("n")
    placement.answer = False
    placement.facts(build.gpu_pod("p", **HALF))
    assert placement.events(PlacementDecided) == []
    placement.send(m.Appended(777))
    assert [e.sequence for e in placement.events(PlacementDecided)] == [777]


def test_bound_is_published_once() -> None:
    placement = Placement().nodes("n")
    pod = show_bound(placement, build.gpu_pod("p", **HALF))
    placement.facts(build.newer(pod, phase="Running"))
    assert [e.node for e in placement.events(PodBound)] == ["n"]


def test_a_pod_that_fits_nowhere_is_rejected_once_with_a_reason_on_the_pod() -> None:
    placement = Placement().nodes("n", gpus=1)
    placement.facts(build.gpu_pod("p", gpus=2))
    for _ in range(5):
        placement.tick()
    assert len(placement.events(PlacementRejected)) == 1
    report = [p for p in placement.patches() if isinstance(p, ReportPending)]
    assert "needs 2 GPUs on one node, the node has 1" in report[0].message


def test_an_invalid_pod_is_refused_by_name_and_harms_no_other() -> None:
    placement = Placement().nodes("n")
    bad = build.pod("bad", limits={"kerf.dev/gpu-memory": "sixteen"})
    assert placement.place(bad, build.gpu_pod("good", **HALF)) == {"good": "n"}
    assert "sixteen" in placement.events(PlacementRejected)[0].explanation.sentence


def test_holds_are_capped_and_continue_when_bindings_are_seen() -> None:
    placement = Placement(max_holds=2).nodes("n")
    pods = [build.gpu_pod(f"p{i}", memory="1Gi") for i in range(3)]
    placement.facts(*pods)
    assert len(placement.binds()) == 2
    placement.bind(pods[0])
    assert len(placement.binds()) == 3


def test_a_deleted_node_frees_grants_that_it_had_not_released() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = show_bound(placement, build.gpu_pod("p", gpus=1))
    placement.gone(pod)
    assert len(placement.core.book.grants) == 1
    placement.gone(build.node("n"))
    assert placement.core.book.grants == {}


def show_bound(placement: Placement, pod: object) -> object:
    placement.facts(pod)
    return placement.bind(pod)  # type: ignore[arg-type]


def test_a_pod_with_a_scheduling_gate_waits_until_the_gate_is_removed() -> None:
    from shared.model.objects import SchedulingGate

    placement = Placement().nodes("n")
    pod = build.gpu_pod("p", **HALF, scheduling_gates=(SchedulingGate(name="hold"),))
    assert placement.place(pod) == {}
    open_ = msgspec.structs.replace(build.newer(pod), spec=msgspec.structs.replace(pod.spec, scheduling_gates=()))
    assert placement.place(open_) == {"p": "n"}


def test_pods_that_wait_behind_one_of_their_shape_get_a_reason_too() -> None:
    """Only the head of an equivalence group is tried; each pod in it must get a reason."""
    placement = Placement().nodes("n", gpus=1)
    placement.facts(build.gpu_pod("a", gpus=2), build.gpu_pod("b", gpus=2))
    placement.facts(build.gpu_pod("late", gpus=2))
    for _ in range(5):
        placement.tick()
    assert sorted(e.name for e in placement.events(PlacementRejected)) == ["a", "b", "late"]
    assert placement.core.stats.rejections == 1


def test_a_pending_reason_is_repeated_until_it_is_on_its_pod() -> None:
    """A watcher that ends loses the reasons that it has not written; the event is not published again."""
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=2)
    placement.facts(pod)
    placement.tick()
    placement.tick(seconds=11)
    reports = [p for p in placement.patches() if isinstance(p, ReportPending)]
    assert len(reports) == 2
    assert reports[0].message == reports[1].message
    told = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=reports[0].message)
    seen = build.newer(pod)
    placement.facts(msgspec.structs.replace(seen, status=PodStatus(phase="Pending", conditions=(told,))))
    placement.tick(seconds=11)
    assert len([p for p in placement.patches() if isinstance(p, ReportPending)]) == 2
    assert len(placement.events(PlacementRejected)) == 1


def test_a_node_is_labelled_with_its_gpus_until_its_labels_are_seen() -> None:
    """Source 3: node labels with the GPU model, for filtering."""
    from shared.contracts.commands import LabelNode

    placement = Placement().nodes("n", gpus=4, model="NVIDIA H100 80GB")
    placement.tick()
    labels = [p for p in placement.patches() if isinstance(p, LabelNode)]
    assert len(labels) == 1
    assert (
        labels[0].labels.items()
        >= {
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB",
            "nvidia.com/gpu.count": "4",
            "nvidia.com/gpu.memory": "81920",
        }.items()
    )
    placement.facts(build.node("n", labels={k: v for k, v in labels[0].labels.items() if v}))
    placement.tick(120.0)
    assert len([p for p in placement.patches() if isinstance(p, LabelNode)]) == 1


def test_a_permanently_removed_node_is_no_longer_subscribed_to() -> None:
    placement = Placement().nodes("n1", "n2")
    placement.gone(placement.core.book.nodes["n1"].object)
    placement.send(m.AgentLost("n1"))
    placement.send(m.BeatSeen(("n1", "n2")))
    placement.tick()
    assert set(placement.core.nodes._heartbeats) == {"n2"}


def test_on_a_large_cluster_pending_reasons_are_limited_per_tick() -> None:
    placement = Placement(*(build.node(f"n{number}") for number in range(200)))
    placement.facts(*(build.gpu_pod(f"p{number}", gpus=1) for number in range(3)))

    def told() -> int:
        return sum(isinstance(c, m.Publish) and isinstance(c.event, PlacementRejected) for c in placement.commands)

    placement.send(m.Tick())
    assert told() == 1
    placement.now += 0.001
    placement.send(m.Tick())
    assert told() == 1
    for _ in range(2):
        placement.now += 0.02
        placement.send(m.Tick())
    assert told() == 3


def test_a_pod_waits_while_its_annotations_leave_no_space_for_a_grant() -> None:
    placement = Placement().nodes("n", gpus=1)
    full = build.newer(build.gpu_pod("p", gpus=1), annotations_full=True)
    placement.facts(full)
    assert placement.binds() == {}
    assert set(placement.place(build.newer(full, annotations_full=False))) == {"p"}


def test_a_hold_is_revoked_at_its_node_if_its_pod_is_bound_with_another_grant() -> None:
    """The node learned of it in a sync, and nothing else would remove it there."""
    placement = Placement().nodes("n", gpus=2)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    (decided,) = placement.core.book.grants
    placement.send(m.TermRenewed(term=placement.core.term + 50))
    other = Grant(grant_id="other", term=1, sequence=2, containers=placement.core.book.grants[decided].grant.containers)
    said = placement.facts(build.bound(pod, "n", other))
    assert [command.release.grant_id for command in only(said, m.SendRelease)] == [decided]
