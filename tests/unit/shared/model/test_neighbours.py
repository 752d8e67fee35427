"""What labels and resources of other systems say of a node, and what is told of it.

Amounts are those that each system's plug-in reports to the kubelet: NVIDIA/k8s-device-plugin (nvidia.com/gpu, with time
slicing also gpu.shared, nvidia.com/mig-*), Project-HAMi/HAMi (nvidia.com/gpu, several per GPU),
volcano-sh/volcano-vgpu-device-plugin, AliyunContainerService/gpushare-device-plugin, tkestack/gpu-manager,
koordinator-sh/koordinator and nebuly-ai/nos (nvidia.com/gpu-10gb). Labels: controllers/state_manager.go of
NVIDIA/gpu-operator has the three of Node Feature Discovery that it reads.
"""

from __future__ import annotations

import pytest

from shared.model import neighbours
from shared.model.neighbours import Neighbourhood, neighbourhood

NFD = "feature.node.kubernetes.io/"
GPU = {f"{NFD}pci-10de.present": "true"}
CPU = {f"{NFD}cpu-model.family": "6"}


@pytest.mark.parametrize(
    ("resource", "amount", "counts"),
    [
        ("nvidia.com/gpu", "8", True),
        ("nvidia.com/gpu", 8, True),
        ("nvidia.com/gpu", "0", False),
        ("nvidia.com/gpu.shared", "32", True),
        ("nvidia.com/gpu-10gb", "2", True),
        ("nvidia.com/mig-1g.10gb", "7", True),
        ("nvidia.com/mig-1g.10gb", "0", False),
        ("volcano.sh/vgpu-number", "80", True),
        ("koordinator.sh/gpu-core", "800", True),
        ("aliyun.com/gpu-mem", "640", True),
        ("tencent.com/vcuda-core", "800", True),
        ("nvidia.com/gpu", "what", True),
        ("kerf.dev/slot", "512", False),
        ("nvidia.com/hostdev", "4", False),
        ("rdma/hca", "8", False),
        ("cpu", "64", False),
    ],
)
def test_resources_of_gpus_count_where_the_kubelet_can_allocate_them(
    resource: str, amount: str | int, counts: bool
) -> None:
    found = neighbourhood({}, {"cpu": "8", resource: amount}, enrolled=True)
    assert found.resources == ((resource,) if counts else ())


@pytest.mark.parametrize(
    ("label", "value", "has_gpu", "discovered"),
    [
        (f"{NFD}pci-10de.present", "true", True, True),
        (f"{NFD}pci-0302_10de.present", "true", True, True),
        (f"{NFD}pci-0300_10de.present", "true", True, True),
        (f"{NFD}pci-0302_10de_2330.present", "true", True, True),
        (f"{NFD}pci-10de_2330.present", "true", True, True),
        (f"{NFD}pci-0680_10de.present", "true", False, True),
        (f"{NFD}pci-0403_10de.present", "true", False, True),
        (f"{NFD}pci-0300_1a03.present", "true", False, True),
        (f"{NFD}pci-0300_1a03_10de.present", "true", False, True),
        (f"{NFD}pci-0302_10de.sriov.capable", "true", False, True),
        (f"{NFD}cpu-model.family", "6", False, True),
        ("nvidia.com/gpu.present", "true", True, False),
        ("nvidia.com/gpu.present", "false", False, False),
        ("kubernetes.io/os", "linux", False, False),
    ],
)
def test_labels_say_whether_there_is_a_gpu(label: str, value: str, has_gpu: bool, discovered: bool) -> None:
    found = neighbourhood({label: value}, {}, enrolled=False)
    assert (found.has_gpu, found.discovered) == (has_gpu, discovered)


def test_other_plugins_are_named_with_three_of_their_nodes_and_what_to_do() -> None:
    nodes = {f"n{i}": Neighbourhood(enrolled=True, resources=("nvidia.com/gpu",)) for i in range(5)}
    nodes["n9"] = Neighbourhood(resources=("nvidia.com/gpu",))
    nodes["plain"] = Neighbourhood(enrolled=True)
    trouble = neighbours.other_plugins(nodes)
    assert trouble is not None
    assert trouble.text == (
        "another device plugin offers GPUs of enrolled nodes as nvidia.com/gpu: n0, n1, n2 and 2 more"
    )
    for remedy in ("nvidia.com/gpu.deploy.device-plugin=false", "devicePlugin.enabled=false", "DoesNotExist"):
        assert remedy in trouble.do
    assert neighbours.other_plugins({"n9": nodes["n9"], "plain": nodes["plain"]}) is None


def test_nvidias_dra_driver_is_named_on_enrolled_nodes_alone() -> None:
    nodes = {"a": Neighbourhood(enrolled=True), "b": Neighbourhood(), "c": Neighbourhood(enrolled=True)}
    trouble = neighbours.other_driver(nodes, ["b", "c", "c", "gone", ""])
    assert trouble is not None
    assert trouble.text.endswith("given twice: c")
    assert "resources.gpus.enabled=false" in trouble.do
    assert neighbours.other_driver(nodes, ["b", "gone"]) is None


def test_a_node_without_a_gpu_is_told_only_where_discovery_finds_gpus_elsewhere() -> None:
    """Else its settings may leave such devices out: core.labelSources, sources.pci.deviceClassWhitelist."""
    bare = neighbourhood(CPU, {}, enrolled=True)
    unseen = neighbourhood({}, {}, enrolled=True)
    here = neighbourhood(GPU, {}, enrolled=True)
    forced = neighbourhood({"nvidia.com/gpu.present": "true"}, {}, enrolled=True)
    assert neighbours.without_gpu({"bare": bare, "unseen": unseen, "forced": forced}) is None
    trouble = neighbours.without_gpu({"bare": bare, "unseen": unseen, "here": here})
    assert trouble is not None
    assert trouble.text == "Node Feature Discovery finds no NVIDIA GPU on enrolled nodes: bare"
    assert neighbours.without_gpu({"unseen": unseen, "here": here}) is None


def test_nodes_of_which_somebody_has_said_whether_they_are_kerfs_are_not_proposed() -> None:
    refused, asked = GPU | {"kerf.dev/managed": "false"}, GPU | {"gpushare": "true"}
    nodes = {
        "by-label": neighbourhood(GPU, {}, enrolled=False),
        "by-plugin": neighbourhood({}, {"nvidia.com/gpu": "8"}, enrolled=False),
        "enrolled": neighbourhood(GPU, {}, enrolled=True),
        "refused": neighbourhood(refused, {}, enrolled=False),
        "waits": neighbourhood(asked, {}, enrolled=False),
        "plain": neighbourhood(CPU, {}, enrolled=False),
    }
    assert neighbours.not_enrolled(nodes) == ("by-label", "by-plugin")
