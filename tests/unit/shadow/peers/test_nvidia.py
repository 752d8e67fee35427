"""Whole and time-sliced GPUs, by labels and counts."""

from __future__ import annotations

import pytest

from shadow.peers import devices_of, given_to
from shadow.peers.base import Surroundings, Unreadable
from shadow.peers.nvidia import Nvidia
from tests.support import shadow


def test_gpus_are_numbered_by_the_labels_of_gpu_feature_discovery() -> None:
    found = devices_of(shadow.node("n1", shadow.gfd(2)))
    assert [(one.uuid, one.memory_mib, one.numbered) for one in found] == [
        ("n1/gpu-0", 40_960, True),
        ("n1/gpu-1", 40_960, True),
    ]
    assert devices_of(shadow.node()) == ()


def test_without_a_count_the_allocatable_replicas_tell_it() -> None:
    labels = shadow.gfd(0, replicas=4) | {"nvidia.com/gpu.product": "Tesla-T4-SHARED"}
    del labels["nvidia.com/gpu.count"]
    found = devices_of(shadow.node("n1", labels, None, **{"nvidia.com/gpu.shared": "8"}))
    assert [(one.model, one.max_sharers) for one in found] == [("Tesla-T4", 4)] * 2


@pytest.mark.parametrize(
    ("allocatable", "healthy"),
    [
        ({}, [True, True]),
        ({"nvidia.com/gpu": "8"}, [True, True]),
        ({"nvidia.com/gpu": "4"}, [True, False]),
        ({"nvidia.com/gpu": "0"}, [False, False]),
        ({"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "4"}, [True, False]),
    ],
)
def test_gpus_that_are_not_allocatable_are_unhealthy(allocatable: dict[str, str], healthy: list[bool]) -> None:
    """Two GPUs by the labels, each sliced into four replicas."""
    found = devices_of(shadow.node("n1", shadow.gfd(2, replicas=4), None, **allocatable))
    assert [one.healthy for one in found] == healthy


def test_whole_gpus_and_replicas() -> None:
    around = Surroundings(
        nodes={"n1": shadow.node("n1", shadow.gfd(2)), "n2": shadow.node("n2", shadow.gfd(2, replicas=4))}
    )
    whole = given_to(shadow.pod(limits={"nvidia.com/gpu": "2"}, on="n1"), around)
    assert whole is not None
    assert (whole.peer, [part.whole for part in whole.parts]) == ("nvidia", [True, True])
    for resource in ("nvidia.com/gpu", "nvidia.com/gpu.shared"):
        sliced = given_to(shadow.pod(limits={resource: "1"}, on="n2"), around)
        assert sliced is not None
        assert [(part.milli, part.memory_milli) for part in sliced.parts] == [(250, 250)]
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    beside = given_to(shadow.pod(limits={"nvidia.com/gpu": "1"}, on="n1", inits=[sidecar]), around)
    assert beside is not None
    assert len(beside.parts) == 2
    assert given_to(shadow.pod(on="n1"), around) is None
    assert given_to(shadow.pod(limits={"nvidia.com/gpu": "1"}), around) is None


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.count": "2"},
        shadow.gfd(2) | {"nvidia.com/gpu.count": "two"},
        shadow.gfd(2) | {"nvidia.com/gpu.memory": "40Gi"},
        shadow.gfd(1) | {"nvidia.com/gpu.replicas": "x"},
        shadow.gfd(1) | {"nvidia.com/gpu.memory": "17179869184"},
    ],
)
def test_malformed_labels_are_named_problems(labels: dict[str, str]) -> None:
    with pytest.raises(Unreadable, match="node n1"):
        devices_of(shadow.node("n1", labels))


def test_a_label_makes_no_more_gpus_than_a_node_has() -> None:
    with pytest.raises(Unreadable, match=r"node n1 has 1025 GPUs .* at most 1024"):
        Nvidia().devices(shadow.node("n1", shadow.gfd(1025)))
