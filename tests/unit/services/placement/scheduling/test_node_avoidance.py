"""A kubelet that turns a pod away: its owner's next pods go elsewhere for a while."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from services.placement.scheduling.node_avoidance import AVOID_S
from shared.contracts.events import PlacementRejected
from shared.model.kube_object import OwnerReference
from shared.model.objects import Pod, PodStatus
from tests.support import build
from tests.support.leader import Leader


def of_owner(name: str, owner: str = "set", **rest: Any) -> Pod:
    pod = build.gpu_pod(name, memory="1Gi", **rest)
    owners = (OwnerReference(kind="ReplicaSet", name=owner, uid=f"uid-{owner}", controller=True),) if owner else ()
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=owners))


def fails(leader: Leader, name: str, node: str, reason: str, owner: str = "set") -> None:
    bound = of_owner(name, owner, node=node)
    leader.facts(bound)
    meta = msgspec.structs.replace(bound.metadata, resource_version=build.next_version())
    leader.facts(msgspec.structs.replace(bound, metadata=meta, status=PodStatus(phase="Failed", reason=reason)))


def node_of(leader: Leader, pod: Pod) -> str:
    leader.facts(pod)
    return leader.binds()[pod.metadata.uid].node


def wait(leader: Leader) -> None:
    """Until it may go there again, and has been tried; the agents live on."""
    leader.now += AVOID_S
    leader.send(m.BeatSeen(("a", "b")))
    for _ in range(5):
        leader.tick(1.0)


@pytest.fixture
def leader() -> Leader:
    """Two nodes; the first one has the better score while it is allowed."""
    made = Leader().nodes("a", "b")
    assert node_of(made, of_owner("first")) == "a"
    return made


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfkerf.dev/slot", "TopologyAffinityError"])
def test_the_next_pod_of_the_same_owner_avoids_the_node_for_five_minutes(leader: Leader, reason: str) -> None:
    fails(leader, "first", "a", reason)
    assert node_of(leader, of_owner("second")) == "b"
    wait(leader)
    leader.facts(build.node("b", unschedulable=True))
    assert node_of(leader, of_owner("third")) == "a"


def test_others_do_not(leader: Leader) -> None:
    fails(leader, "first", "a", "UnexpectedAdmissionError")
    assert node_of(leader, of_owner("another", "else")) == "a"


def test_neither_a_pod_that_failed_by_itself_nor_a_bare_one_counts_against_the_node(leader: Leader) -> None:
    fails(leader, "first", "a", "Error")
    fails(leader, "bare", "a", "UnexpectedAdmissionError", owner="")
    assert node_of(leader, of_owner("second")) == "a"


def test_a_pod_that_fits_on_no_other_node_waits_and_gets_a_reason() -> None:
    leader = Leader().nodes("a")
    fails(leader, "first", "a", "UnexpectedAdmissionError")
    second = of_owner("second")
    leader.facts(second)
    assert second.metadata.uid not in leader.binds()
    leader.tick()
    assert "has turned away a pod of the same owner" in leader.events(PlacementRejected)[-1].explanation.sentence
    wait(leader)
    assert leader.binds()[second.metadata.uid].node == "a"
