"""Pods leave a node whose driver the GPU operator replaces."""

from __future__ import annotations

from typing import Any

import pytest

from services.preemptor import messages as m
from services.preemptor.driver_upgrades import LOOK_S, STATE_LABEL
from services.preemptor.repeated_evictions import AGAIN_S
from shared.model.grant import ContainerGrant, GpuShare, Grant
from tests.support import build
from tests.support.harness.preemptor import Preemptor


def ready(**settings: Any) -> Preemptor:
    """Two nodes, each with a pod that has a GPU."""
    preemptor = Preemptor("a", "b", **settings)
    preemptor.send(m.SnapshotSeen(build.put(build.node("a"), build.node("b"))))
    for name in ("a", "b"):
        preemptor.send(m.InventorySeen(build.inventory(name, gpus=2)))
        preemptor.run(f"on-{name}", name, 0)
    return preemptor


def label(preemptor: Preemptor, node: str, state: str) -> None:
    preemptor.send(m.FactsSeen(build.put(build.node(node, labels={STATE_LABEL: state}))))


def evicted(preemptor: Preemptor, after_s: float = 0.0) -> list[str]:
    preemptor.now += after_s
    found = [command for command in preemptor.send(m.Tick()) if isinstance(command, m.Execute)]
    return sorted(order.name for command in found for order in command.evictions)


@pytest.mark.parametrize("state", ["pod-deletion-required", "drain-required", "pod-restart-required"])
def test_its_pods_are_evicted_while_the_operator_waits_for_an_empty_node(state: str) -> None:
    preemptor = ready()
    label(preemptor, "a", state)
    assert evicted(preemptor) == ["on-a"]
    assert evicted(preemptor, 1) == [], "it has just been asked for"
    assert evicted(preemptor, AGAIN_S) == ["on-a"], "a budget may have denied it"
    preemptor.send(m.FactsSeen(build.gone(preemptor.pods["on-a"])))
    assert evicted(preemptor, AGAIN_S) == []


def test_a_node_that_is_marked_between_two_looks_is_found_by_the_next_one() -> None:
    """With thousands of nodes they are not all looked at ten times a second."""
    preemptor = ready()
    assert evicted(preemptor) == []
    label(preemptor, "a", "drain-required")
    assert evicted(preemptor, LOOK_S / 2) == []
    assert evicted(preemptor, LOOK_S / 2) == ["on-a"]


@pytest.mark.parametrize("state", ["", "upgrade-required", "cordon-required", "uncordon-required", "upgrade-done"])
def test_in_other_states_they_run_on(state: str) -> None:
    preemptor = ready()
    label(preemptor, "a", state)
    assert evicted(preemptor) == []


def test_the_operator_can_switch_it_off() -> None:
    preemptor = ready(driver_upgrades="ignore")
    label(preemptor, "a", "drain-required")
    assert evicted(preemptor) == []


def test_a_pod_without_gpus_or_of_another_scheduler_is_left_alone() -> None:
    preemptor = ready()
    plain = build.bound(build.pod("plain"), "a")
    theirs = build.bound(build.pod("theirs", scheduler="default-scheduler"), "a")
    preemptor.send(m.FactsSeen(build.put(plain, theirs)))
    label(preemptor, "a", "drain-required")
    assert evicted(preemptor) == ["on-a"]


def test_the_pods_that_use_its_gpus_are_evicted_wherever_they_run() -> None:
    """A server for a pod of another node keeps the driver in use; a pod here whose GPU is elsewhere does not."""
    preemptor = ready()
    share = GpuShare(node="a", uuid="gpu-a-1", memory_mib=1024, compute_milli=100)
    part = ContainerGrant(strategy="remote", serving="interposer", gpus=(share,))
    far = build.bound(
        build.gpu_pod("far", memory="1Gi"), "b", Grant(grant_id="grant-far", term=1, containers={"main": part})
    )
    preemptor.send(m.FactsSeen(build.put(far)))
    label(preemptor, "a", "drain-required")
    assert evicted(preemptor) == ["far", "on-a"]
    label(preemptor, "a", "upgrade-done")
    label(preemptor, "b", "drain-required")
    assert evicted(preemptor, AGAIN_S) == ["on-b"]


def test_a_pod_that_has_ended_is_not_evicted_while_its_node_has_not_given_its_gpu_back() -> None:
    preemptor = ready()
    preemptor.send(m.FactsSeen(build.put(build.newer(preemptor.pods["on-a"], phase="Succeeded"))))
    label(preemptor, "a", "drain-required")
    assert evicted(preemptor) == []
