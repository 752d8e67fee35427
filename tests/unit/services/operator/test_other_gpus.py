"""A node on which other systems' pods have GPUs is enrolled when these are gone, and not before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.operator.config import Config
from services.operator.core import Core
from services.operator.messages import Decision
from services.operator.objects import Node, NodeMeta, Pod, PodStatus
from services.operator.other_gpus import has_gpus_of_others

NOW_S = 1.8e9


def pod(name: str = "p", *, node: str = "n1", annotations: dict[str, str] | None = None, **limits: str) -> Pod:
    """`limits` by the last part of HAMi's names: gpu, gpumem."""
    named = {f"nvidia.com/{key}": value for key, value in limits.items()}
    return made(name, node, {"containers": [{"resources": {"limits": named}}]}, annotations)


def made(name: str, node: str, spec: dict[str, Any], annotations: dict[str, str] | None = None) -> Pod:
    meta = {"name": name, "namespace": "team", "uid": name, "annotations": annotations or {}}
    return msgspec.convert({"metadata": meta, "spec": {"nodeName": node, **spec}}, Pod)


@pytest.mark.parametrize(
    "limits",
    [
        {"nvidia.com/gpu": "1"},
        {"nvidia.com/gpumem": 3000},
        {"nvidia.com/gpu.shared": "1"},
        {"nvidia.com/mig-1g.10gb": "1"},
        {"volcano.sh/vgpu-number": "1"},
        {"koordinator.sh/gpu-core": "50"},
        {"tencent.com/vcuda-core": "10"},
        {"aliyun.com/gpu-mem": "3"},
    ],
    ids=lambda limits: next(iter(limits)),
)
def test_every_systems_pods_count(limits: dict[str, Any]) -> None:
    for field in ("containers", "initContainers"):
        assert has_gpus_of_others(made("p", "n1", {field: [{"resources": {"limits": limits}}]}))


@pytest.mark.parametrize("name", ["gpu-fraction", "gpu-memory"])
def test_kais_parts_of_gpus_are_in_annotations(name: str) -> None:
    assert has_gpus_of_others(pod(annotations={name: "0.5"}))


@pytest.mark.parametrize(
    ("spec", "annotations"),
    [
        ({"containers": [{"resources": {"limits": {"cpu": "1"}}}]}, {}),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "0"}}}]}, {}),
        ({"containers": [{"resources": {"limits": {"kerf.dev/gpu": "1"}}}]}, {}),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, {"kerf.dev/grant": "{}"}),
    ],
    ids=["none", "zero", "kerfs", "granted"],
)
def test_pods_without_gpus_and_kerfs_do_not_count(spec: dict[str, Any], annotations: dict[str, str]) -> None:
    assert not has_gpus_of_others(made("p", "n1", spec, annotations))


def test_a_pod_that_waits_or_has_ended_has_no_gpus() -> None:
    assert not has_gpus_of_others(pod(node="", gpu="1"))
    for phase in ("Succeeded", "Failed"):
        assert not has_gpus_of_others(msgspec.structs.replace(pod(gpu="1"), status=PodStatus(phase=phase)))


def test_a_condition_without_a_time_hides_no_pod() -> None:
    """The API server shows the time as null where its writer named none."""
    text = (
        b'{"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"resources": {"limits": '
        b'{"nvidia.com/gpu": "1"}}}]}, "status": {"conditions": [{"type": "Ready", "lastTransitionTime": null}]}}'
    )
    assert has_gpus_of_others(msgspec.json.decode(text, type=Pod))


class World:
    def __init__(self) -> None:
        self.core = Core(Config())
        self.decide()

    def decide(self) -> Decision:
        return self.core.decide(NOW_S, bytes)

    def node(self, **labels: str) -> None:
        named = {f"kerf.dev/{key}": value for key, value in labels.items()}
        self.core.seen.put(Node(metadata=NodeMeta(name="n1", labels=named)))

    def enrols(self) -> tuple[bool, list[str]]:
        """Whether the node is enrolled by what is decided now, and the Events on nodes."""
        told = self.decide()
        done = [write for write in told.writes if write.resource.kind == "Node"]
        return bool(done), [notice.reason for notice in told.notices if notice.node]

    def condition(self) -> tuple[str, str]:
        self.decide()
        (found,) = [c for c in self.core.conditions if c.type == "NodesEnrolled"]
        return found.reason, found.message


def test_a_labelled_node_waits_until_the_last_pod_is_gone_and_one_event_says_so() -> None:
    world, pods = World(), [pod("a", gpu="1"), pod("b", gpumem="3000")]
    for one in pods:
        world.core.seen.put(one)
    world.node(managed="true")
    assert world.enrols() == (False, ["NotEnrolled"])
    reason, message = world.condition()
    assert reason == "NodesOccupied"
    assert message == (
        "2 pods have GPUs of another system on node n1 (team/a, team/b); it is enrolled when they are gone: kubectl "
        "drain n1 --ignore-daemonsets --delete-emptydir-data"
    )
    world.core.seen.gone(pods[0])
    assert world.core.unfinished, "the node is looked at again"
    assert world.enrols() == (False, [])
    world.core.seen.put(msgspec.structs.replace(pods[1], status=PodStatus(phase="Succeeded")))
    assert world.enrols() == (True, ["Enrolled"])


def test_an_enrolled_node_stays_enrolled() -> None:
    """Such a pod tolerates Kerf's taint, or was there before a version that looked for it."""
    world = World()
    world.node(managed="true", enrolled="true")
    world.enrols()
    world.core.seen.put(pod(gpu="1"))
    assert world.enrols() == (False, [])
    assert world.condition()[0] == "Enrolled"


def test_a_node_without_the_label_is_of_no_interest() -> None:
    world = World()
    world.node()
    world.core.seen.put(pod(gpu="1"))
    assert world.enrols() == (False, [])
    assert world.condition()[0] == "NoNodes"
