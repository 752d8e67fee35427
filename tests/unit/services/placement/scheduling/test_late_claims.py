"""Pods with volumes that are made only when their node is known."""

from __future__ import annotations

from typing import Any

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import questions
from services.placement.scheduling.late_claims import KEPT_S
from shared.contracts.commands import SelectNode
from shared.contracts.queries import WhyQuery
from shared.model.objects import Pod, PvcSource, Volume
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.late_volumes import LATE, claim, volume


def with_volume(name: str, **fields: Any) -> Pod:
    mounts = Volume(name="data", persistent_volume_claim=PvcSource(claim_name=f"data-{name}"))
    return build.gpu_pod(name, gpus=1, volumes=(mounts,), **fields)


def ordered(placement: Placement) -> dict[str, str]:
    """By claim: the node that was ordered last."""
    return {order.claim: order.node for order in placement.patches() if isinstance(order, SelectNode)}


def make_volume(placement: Placement, name: str) -> None:
    """It is made where it was ordered, and can be reached from there alone."""
    made = volume(f"pv-{name}", of=f"data-{name}", node=ordered(placement)[f"data-{name}"])
    placement.facts(made, claim(f"data-{name}", volume=f"pv-{name}"))


def wait(placement: Placement, seconds: float) -> None:
    """The agent of the node is heard of."""
    placement.tick(seconds)
    placement.send(m.BeatSeen(("n1",)))


def charged(placement: Placement, pod: Pod) -> str:
    return placement.core.book.pods[pod.metadata.uid].charged


def test_each_pod_of_a_burst_gets_a_node_of_its_own() -> None:
    """All of their volumes were made on one node that had room for one of them."""
    names = ("a", "b", "c")
    placement = Placement(LATE, *(claim(f"data-{name}") for name in names)).nodes("n1", "n2", "n3", gpus=1)
    pods = [with_volume(name) for name in names]
    placement.facts(*pods)
    assert sorted(ordered(placement).values()) == ["n1", "n2", "n3"]
    for name in names:
        make_volume(placement, name)
    placement.tick(1.0)
    assert [charged(placement, pod) for pod in pods] == [ordered(placement)[f"data-{name}"] for name in names]


def test_a_younger_pod_does_not_get_a_place_where_a_volume_is_being_made() -> None:
    placement = Placement(LATE, claim("data-old")).nodes("n1", gpus=1)
    old, young = with_volume("old", created="2026-11-21T00:00:00Z"), build.gpu_pod("young", gpus=1)
    placement.facts(old)
    placement.facts(young)
    for _ in range(20):
        wait(placement, 1.0)
    assert charged(placement, young) == ""
    placement.facts(build.node("n2"))
    make_volume(placement, "old")
    placement.tick(1.0)
    assert charged(placement, old) == "n1"


def test_why_is_that_the_volume_is_being_made() -> None:
    placement = Placement(LATE, claim("data-p")).nodes("n1", gpus=1)
    placement.facts(with_volume("p"))
    said = finish(questions.why(placement.core, WhyQuery(namespace="team", name="p"), 0.0, 0.0)).explanation
    assert (said.state, said.node) == ("waiting", "n1")
    assert said.sentence == "a place on n1 is kept for the pod while its volumes are made there"


def test_the_place_is_free_when_the_pod_is_gone() -> None:
    placement = Placement(LATE, claim("data-p")).nodes("n1", gpus=1)
    before = placement.core.book.digest()
    pod, other = with_volume("p"), build.gpu_pod("other", gpus=1)
    placement.facts(pod)
    assert placement.core.book.digest() != before
    placement.facts(other)
    placement.gone(pod)
    placement.tick(1.0)
    assert charged(placement, other) == "n1"


def test_others_get_a_place_that_was_kept_for_a_volume_that_is_not_made() -> None:
    placement = Placement(LATE, claim("data-p")).nodes("n1", gpus=1)
    pod, other = with_volume("p", created="2026-11-21T00:00:00Z"), build.gpu_pod("other", gpus=1)
    placement.facts(pod)
    placement.facts(other)
    wait(placement, KEPT_S / 2)
    wait(placement, 1.0)
    assert charged(placement, other) == ""
    wait(placement, KEPT_S / 2)
    wait(placement, 1.0)
    assert charged(placement, other) == "n1"
