"""Placement's protocol, rule by rule."""

from __future__ import annotations

import msgspec
import pytest

from services.placement import messages as m
from services.placement.protocol.write_batcher import GATHER_S
from shared.contracts.commands import Answer, TouchPod
from shared.contracts.log import DecisionBatch
from shared.model.grant import decode_grant
from shared.model.objects import ContainerStatus, HeldResources, Pod
from tests.support import build
from tests.support.harness.placement import Placement, only
from tests.unit.services.placement.core_pods import HALF


def test_a_decision_is_in_the_log_before_its_binding_goes_out() -> None:
    """R2"""
    placement = Placement(build.node("n")).nodes("n")
    placement.answer = False
    commands = placement.facts(build.gpu_pod("p", **HALF))
    assert [type(c) for c in commands] == [m.Append]
    commands = placement.send(m.Appended(sequence=500))
    assert only(commands, m.SendBinds)[0].sequence == 500
    assert decode_grant(only(commands, m.SendBinds)[0].binds[0].grant).sequence == 500


def test_a_resize_by_kubernetes_counts_as_far_as_the_kubelet_has_carried_it_out() -> None:
    """A growth that could never fit closed the node, and a shrink gave away what the pod still had."""

    def sized(pod: Pod, wants: str, has: str, **told: str) -> Pod:
        made = build.gpu_pod("x", gpus=1, requests={"cpu": wants}).spec.containers
        held = ContainerStatus(name="c", resources=HeldResources(requests={"cpu": has}))
        status = msgspec.structs.replace(pod.status, container_statuses=(held,), **told)
        spec = msgspec.structs.replace(pod.spec, containers=made)
        return msgspec.structs.replace(build.newer(pod), spec=spec, status=status)

    placement = Placement().nodes("n", gpus=3)
    placement.facts(build.gpu_pod("x", gpus=1, requests={"cpu": "1"}, uid="x"))
    pod = placement.bind(placement.core.book.pods["x"].pod)
    placement.facts(pod := sized(pod, "1000", "1", resize="Infeasible"))
    placement.facts(build.gpu_pod("beside", gpus=1, requests={"cpu": "3"}, uid="beside"))
    assert "beside" in placement.binds(), "the node is not full"
    placement.facts(pod := sized(pod, "60", "1", resize="InProgress"))
    placement.facts(pod := sized(pod, "1", "60"))
    placement.facts(build.gpu_pod("later", gpus=1, requests={"cpu": "3"}, uid="later"))
    assert "later" not in placement.binds(), "the pod has 60 CPUs"
    placement.facts(sized(pod, "1", "1"))
    assert "later" in placement.binds(), "and gives them back now"


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
    placement.now += GATHER_S
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


def test_the_same_grant_on_two_pods_is_never_made() -> None:
    placement = Placement().nodes("n", "o")
    placement.facts(*[build.gpu_pod(f"p{i}", **HALF) for i in range(32)])
    ids = [d.grant.grant_id for _, r in placement.log if isinstance(r, DecisionBatch) for d in r.decisions if d.grant]
    assert len(ids) == 32
    assert len(set(ids)) == 32


def test_holds_are_capped_and_continue_when_bindings_are_seen() -> None:
    placement = Placement(max_holds=2).nodes("n")
    pods = [build.gpu_pod(f"p{i}", memory="1Gi") for i in range(3)]
    placement.facts(*pods)
    assert len(placement.binds()) == 2
    placement.bind(pods[0])
    assert len(placement.binds()) == 3


def test_a_pod_with_a_scheduling_gate_waits_until_the_gate_is_removed() -> None:
    from shared.model.objects import SchedulingGate

    placement = Placement().nodes("n")
    pod = build.gpu_pod("p", **HALF, scheduling_gates=(SchedulingGate(name="hold"),))
    assert placement.place(pod) == {}
    open_ = msgspec.structs.replace(build.newer(pod), spec=msgspec.structs.replace(pod.spec, scheduling_gates=()))
    assert placement.place(open_) == {"p": "n"}


def test_a_pod_waits_while_its_annotations_leave_no_space_for_a_grant() -> None:
    placement = Placement().nodes("n", gpus=1)
    full = build.newer(build.gpu_pod("p", gpus=1), annotations_full=True)
    placement.facts(full)
    assert placement.binds() == {}
    assert set(placement.place(build.newer(full, annotations_full=False))) == {"p"}
