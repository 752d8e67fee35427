"""What a new leader session does before it decides, and what a renewed term repeats."""

from __future__ import annotations

from typing import Any

import pytest

from services.placement import messages as m
from services.placement.protocol.hearing import FIRST_ANSWERS_S, HEARD_FIRST_S
from shared.contracts.commands import ReportPending, TouchPod
from shared.contracts.log import DecisionBatch, ReadyRecord
from shared.contracts.node_commands import LiveSlice, NodeSyncAnswer
from shared.contracts.preemption import Plan
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.placement import Placement, only
from tests.unit.services.placement.core_pods import HALF


def test_without_a_complete_log_every_pending_pod_is_touched_before_anything_is_decided() -> None:
    pod, node = build.gpu_pod("p", **HALF), build.node("n")
    placement = Placement(node, pod)
    placement.send(m.InventorySeen(build.inventory("n")))
    assert [p.uid for p in placement.patches() if isinstance(p, TouchPod)] == [pod.metadata.uid]
    assert placement.core.phase == "touching"
    assert placement.binds() == {}
    touched = build.newer(pod)
    placement.facts(touched)
    # The second one says that the nodes have been heard.
    assert [type(r) for _, r in placement.log] == [ReadyRecord, ReadyRecord, DecisionBatch]
    assert placement.binds()[pod.metadata.uid].resource_version == touched.metadata.resource_version


def test_a_plan_that_comes_before_the_session_leads_may_be_proposed_again() -> None:
    placement = Placement(build.gpu_pod("p", **HALF))
    plan = Plan(plan_id="early", beneficiaries=(), victims=(), deadline_s=1)
    (answer,) = only(placement.send(m.ReserveAsked(plan)), m.AnswerPlan)
    assert (answer.answer.plan_id, answer.answer.ok, answer.answer.again) == ("early", False, True)


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


def test_all_containers_of_a_pod_that_is_unknown_occupy_their_gpus() -> None:
    placement = Placement(build.node("n"))
    placement.answer = False
    placement.send(m.InventorySeen(build.inventory("n", gpus=3)))
    placement.answer = True
    live = tuple(
        LiveSlice(
            uid="x", namespace="old", name="ghost", container=f"c{gpu}", grant_id="1-1", strategy="exclusive",
            gpus={f"n-gpu-{gpu}": (81920, 1000)},
        )
        for gpu in range(2)
    )  # fmt: skip
    placement.send(m.SyncAnswered(NodeSyncAnswer(node="n", boot_id="boot-1", term=100, accepted=True, live=live)))
    assert placement.place(build.gpu_pod("p", gpus=2)) == {}
    assert placement.place(build.gpu_pod("q", gpus=1)) == {"q": "n"}
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


def listing(*objects: Any) -> Placement:
    """A session that has taken its term and has no snapshot yet."""
    placement = Placement(*objects, begins=False)
    placement.answer = False
    placement.send(placement.beginning)
    assert placement.core.phase == "listing"
    return placement


def running(name: str) -> Pod:
    share = GpuShare(node="n", uuid="n-gpu-0", memory_mib=40_960, compute_milli=500)
    grant = Grant(grant_id="1-1", term=1, containers={"c": ContainerGrant(strategy="advisory", gpus=(share,))})
    return build.bound(build.gpu_pod(name, **HALF), "n", grant)


def test_the_parts_of_a_snapshot_and_the_whole_are_as_the_whole_alone() -> None:
    objects = build.put(build.node("n"), running("runs"), build.gpu_pod("waits", **HALF))
    whole, parts = listing(), listing()
    for part in m.parts_of(objects, 1):
        assert parts.send(part) == []
    assert parts.core.phase == "listing", "nothing is decided before all objects are known"
    touched = [[order.patches for order in one.send(m.SnapshotSeen(objects))] for one in (parts, whole)]
    assert touched[0] == touched[1] != []
    for one in (whole, parts):
        assert set(one.core.book.pods) == {"uid-team-runs", "uid-team-waits"}
        assert one.core.book.grants["1-1"].phase == "bound"


def test_a_part_that_comes_when_the_session_leads_changes_nothing() -> None:
    placement = Placement().nodes("n")
    placement.send(m.SnapshotPart(build.put(build.node("other"))))
    assert "other" not in placement.core.book.nodes


def test_a_running_pod_of_the_first_snapshot_is_told_to_its_node_by_the_sync_alone() -> None:
    """A grant for each of 100,000 pods besides, and the answer to each, would delay what the new leader is there
    for."""
    pod = running("runs")
    placement = Placement(build.node("n"), pod, build.gpu_pod("waits", **HALF))
    placement.send(m.InventorySeen(build.inventory("n")))
    placement.facts(build.newer(placement.core.book.pods["uid-team-waits"].pod))
    assert only(placement.commands, m.SendGrant) == []
    assert [grant.grant.grant_id for sync in only(placement.commands, m.SendSync) for grant in sync.sync.grants] == [
        "1-1"
    ]


def test_no_reasons_are_given_before_the_nodes_have_answered_a_new_session() -> None:
    """Nothing fits on a node that has not answered. To say so of each waiting pod would keep the answers waiting: on
    5,000 nodes a reason takes longer than an answer."""
    pod = build.gpu_pod("p", gpus=9)
    placement = Placement(build.node("n"), pod)
    placement.send(m.InventorySeen(build.inventory("n")))
    placement.answer = False
    said = placement.facts(build.newer(pod))
    said += placement.send(m.Appended(placement.sequence + 1))
    (sync,) = only(said, m.SendSync)
    assert placement.core.phase == "leading"
    others_over = placement.tick(1.0) + placement.tick(HEARD_FIRST_S) + placement.tick()
    assert reported(others_over) == []
    answer = NodeSyncAnswer(node="n", boot_id="boot-1", term=sync.sync.term, accepted=True, number=sync.sync.number)
    assert reported(placement.send(m.SyncAnswered(answer)) + placement.tick()) == ["p"]


def test_a_node_that_never_answers_keeps_no_reason_back_for_good() -> None:
    pod = build.gpu_pod("p", gpus=9)
    placement = Placement(build.node("n"), pod)
    placement.send(m.InventorySeen(build.inventory("n")))
    placement.answer = False
    placement.facts(build.newer(pod))
    placement.send(m.Appended(placement.sequence + 1))
    assert reported(placement.tick(FIRST_ANSWERS_S) + placement.tick()) == ["p"]


def reported(said: list[m.Command]) -> list[str]:
    return [p.name for order in only(said, m.SendPatches) for p in order.patches if isinstance(p, ReportPending)]


PODS_IN_PARTS = 7


def test_a_large_snapshot_is_taken_in_part_by_part_and_what_comes_meanwhile_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two parts the bus is served, and the lease renewed. A fact before its time would speak of pods that are
    not known yet, or no longer."""
    monkeypatch.setattr("services.placement.core.CHANGES_AT_ONCE", 2)
    monkeypatch.setattr("services.placement.listing.CHANGES_AT_ONCE", 2)
    pods = [build.gpu_pod(f"p{i}", **HALF) for i in range(PODS_IN_PARTS)]
    whole = Placement(build.node("n"), *pods)
    placement = Placement(build.node("n"), *pods, answer=False)
    objects = placement.objects
    for part in m.parts_of(objects, 3):
        assert placement.send(part) == []
    parts = 0
    commands = placement.send(m.SnapshotSeen(objects, 0))
    late, gone = build.gpu_pod("late", **HALF), pods[-1]
    placement.facts(late)
    placement.gone(gone)
    while placement.core.phase == "listing":
        assert only(commands, m.Again)
        assert late.metadata.uid not in placement.core.book.pods, "a fact before its time"
        parts += 1
        commands = placement.send(m.Tick())
    assert parts > 1
    while only(commands, m.Again):
        commands = placement.send(m.Tick())
    assert set(placement.core.book.pods) == {pod.metadata.uid for pod in [*pods[:-1], late]}
    whole.facts(late)
    whole.gone(gone)
    assert placement.core.book.digest() == whole.core.book.digest()
    assert len(placement.core.queue) == len(whole.core.queue)


def test_a_second_snapshot_during_the_first_one_is_taken_in_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.placement.core.CHANGES_AT_ONCE", 2)
    monkeypatch.setattr("services.placement.listing.CHANGES_AT_ONCE", 2)
    pods = [build.gpu_pod(f"p{i}", **HALF) for i in range(PODS_IN_PARTS)]
    placement = Placement(build.node("n"), *pods, answer=False)
    placement.send(m.SnapshotSeen(placement.objects, 0))
    assert placement.core.phase == "listing"
    commands = placement.send(m.SnapshotSeen(build.put(build.node("n"), *pods[1:]), 0))
    while only(commands, m.Again):
        commands = placement.send(m.Tick())
    assert placement.core.phase != "listing"
    assert set(placement.core.book.pods) == {pod.metadata.uid for pod in pods[1:]}


def test_a_session_leads_when_policies_have_learned_from_all_placed_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.placement.engine.memory.REMEMBERED_AT_ONCE", 2)
    first = Placement().nodes("n", gpus=8)
    pods = []
    for i in range(PODS_IN_PARTS):
        pod = build.gpu_pod(f"p{i}", **HALF)
        first.facts(pod)
        pods.append(first.bind(pod))
    met: list[str] = []
    second = Placement(build.node("n"), *pods, term=200, records=tuple(first.log), begins=False)
    monkeypatch.setattr(second.core.engine, "meet", lambda state, *, placed: met.append(state.pod.metadata.name))
    second.send(second.beginning)
    assert second.core.phase == "leading"
    assert sorted(met) == [f"p{i}" for i in range(PODS_IN_PARTS)]
    assert len([c for c in second.commands if isinstance(c, m.Again)]) >= PODS_IN_PARTS // 2
