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
from tests.support.harness.placement import Placement


def of_owner(name: str, owner: str = "set", **rest: Any) -> Pod:
    pod = build.gpu_pod(name, memory="1Gi", **rest)
    owners = (OwnerReference(kind="ReplicaSet", name=owner, uid=f"uid-{owner}", controller=True),) if owner else ()
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=owners))


def fails(placement: Placement, name: str, node: str, reason: str, owner: str = "set") -> None:
    bound = of_owner(name, owner, node=node)
    placement.facts(bound)
    meta = msgspec.structs.replace(bound.metadata, resource_version=build.next_version())
    placement.facts(msgspec.structs.replace(bound, metadata=meta, status=PodStatus(phase="Failed", reason=reason)))


def node_of(placement: Placement, pod: Pod) -> str:
    placement.facts(pod)
    return placement.binds()[pod.metadata.uid].node


def wait(placement: Placement) -> None:
    """Until it may go there again, and has been tried; the agents live on."""
    placement.now += AVOID_S
    placement.send(m.BeatSeen(("a", "b")))
    for _ in range(5):
        placement.tick(1.0)


@pytest.fixture
def placement() -> Placement:
    """Two nodes; the first one has the better score while it is allowed."""
    made = Placement().nodes("a", "b")
    assert node_of(made, of_owner("first")) == "a"
    return made


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfkerf.dev/slot", "TopologyAffinityError"])
def test_the_next_pod_of_the_same_owner_avoids_the_node_for_five_minutes(placement: Placement, reason: str) -> None:
    fails(placement, "first", "a", reason)
    assert node_of(placement, of_owner("second")) == "b"
    wait(placement)
    placement.facts(build.node("b", unschedulable=True))
    assert node_of(placement, of_owner("third")) == "a"


def test_others_do_not(placement: Placement) -> None:
    fails(placement, "first", "a", "UnexpectedAdmissionError")
    assert node_of(placement, of_owner("another", "else")) == "a"


def test_neither_a_pod_that_failed_by_itself_nor_a_bare_one_counts_against_the_node(placement: Placement) -> None:
    fails(placement, "first", "a", "Error")
    fails(placement, "bare", "a", "UnexpectedAdmissionError", owner="")
    assert node_of(placement, of_owner("second")) == "a"


def test_a_pod_that_fits_on_no_other_node_waits_and_gets_a_reason() -> None:
    placement = Placement().nodes("a")
    fails(placement, "first", "a", "UnexpectedAdmissionError")
    second = of_owner("second")
    placement.facts(second)
    assert second.metadata.uid not in placement.binds()
    placement.tick()
    assert "has rejected a pod of the same controller" in placement.events(PlacementRejected)[-1].explanation.sentence
    wait(placement)
    assert placement.binds()[second.metadata.uid].node == "a"
