"""CPU, memory, ephemeral storage, extended resources and the number of pods, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from shared.model.objects import Pod
from tests.support import build
from tests.unit.shared.scheduling.filters.verdict import ALWAYS, Spec, pod, requests, verdict

WIDGET = "example.com/widget"


def asking(*containers: Spec, inits: tuple[Spec, ...] = (), **rest: Any) -> Pod:
    return pod(containers=list(containers) or [{"name": "c"}], initContainers=list(inits), **rest)


@pytest.mark.parametrize(
    ("behaviour", "asked", "code"),
    [
        (
            "what is there to the last thousandth is enough",
            asking(requests(cpu="4", memory="8Gi", ephemeral_storage="100Gi")),
            "",
        ),
        ("a thousandth of a core too much does not fit", asking(requests(cpu="4001m")), "cpu"),
        ("a byte too much does not fit", asking(requests(memory="8589934593")), "memory"),
        ("ephemeral storage is counted", asking(requests(ephemeral_storage="101Gi")), "ephemeral-storage"),
        ("containers add up", asking(requests(cpu="2"), requests(cpu="2001m")), "cpu"),
        ("an init container counts where it is larger", asking(requests(cpu="1"), inits=(requests(cpu="5"),)), "cpu"),
        ("an init container does not add to the containers", asking(requests(cpu="3"), inits=(requests(cpu="3"),)), ""),
        ("a sidecar adds to the containers", asking(requests(cpu="3"), inits=(requests(cpu="1001m") | ALWAYS,)), "cpu"),
        (
            "a sidecar runs beside later init containers",
            asking(inits=(requests(cpu="2") | ALWAYS, requests(cpu="2001m"))),
            "cpu",
        ),
        (
            "a sidecar does not run beside earlier init containers",
            asking(inits=(requests(cpu="2001m"), requests(cpu="2") | ALWAYS)),
            "",
        ),
        ("overhead is added", asking(requests(cpu="4"), overhead={"cpu": "1m"}), "cpu"),
        ("pod-level resources replace the sum", asking(requests(cpu="1"), resources={"requests": {"cpu": "5"}}), "cpu"),
        ("a limit without a request is a request", asking({"name": "c", "resources": {"limits": {"cpu": "5"}}}), "cpu"),
        (
            "an extended resource that the node lacks",
            asking({"name": "c", "resources": {"limits": {WIDGET: "1"}}}),
            "extended-resource",
        ),
    ],
)
def test_resources_on_an_empty_node(behaviour: str, asked: Pod, code: str) -> None:
    assert verdict(asked) == code, behaviour


def test_running_pods_take_capacity_and_ended_pods_take_none() -> None:
    large = asking(requests(cpu="3"))
    running = pod("a", on="n", containers=[requests(cpu="2")])
    assert verdict(large, running) == "cpu"
    assert verdict(large, build.newer(running, phase="Succeeded")) == ""


def test_resources_that_are_not_requested_are_not_checked() -> None:
    """A node with overcommitted memory still takes a pod that requests only CPU."""
    assert verdict(asking(requests(cpu="1")), pod("a", on="n", containers=[requests(memory="16Gi")])) == ""


def test_the_number_of_pods_is_bounded() -> None:
    node = build.node("n", pods=1)
    assert verdict(pod(), node=node) == ""
    assert verdict(pod(), pod("a", on="n"), node=node) == "too-many-pods"


def test_extended_resources_are_taken_one_by_one() -> None:
    node = build.node("n", **{WIDGET: "2"})
    widgets = [{"name": "c", "resources": {"limits": {WIDGET: "2"}}}]
    assert verdict(pod(containers=widgets), node=node) == ""
    assert (
        verdict(
            pod(containers=widgets),
            pod("a", on="n", containers=[{"name": "c", "resources": {"limits": {WIDGET: "1"}}}]),
            node=node,
        )
        == "extended-resource"
    )
