"""Other systems that offer GPUs of enrolled nodes are a condition of the installation, and one Event."""

from __future__ import annotations

from typing import Any

import msgspec

from services.operator.config import Config
from services.operator.core import Core
from services.operator.messages import Condition
from services.operator.objects import Node, ResourceSlice

NFD = "feature.node.kubernetes.io/"


class World:
    def __init__(self, **settings: Any) -> None:
        self.core = Core(Config(**settings))
        self.noticed: list[tuple[str, str]] = []
        self.now_s = 1.8e9

    def node(self, name: str, *, labels: dict[str, str] | None = None, **resources: str) -> Node:
        named = {f"nvidia.com/{key}": amount for key, amount in resources.items()}
        meta = {"name": name, "labels": {"kerf.dev/managed": "true", "kerf.dev/enrolled": "true"} | (labels or {})}
        made = msgspec.convert({"metadata": meta, "status": {"allocatable": {"cpu": "8"} | named}}, Node)
        self.core.seen.put(made)
        return made

    def slice(self, name: str, node: str, *devices: str) -> ResourceSlice:
        spec = {"nodeName": node, "driver": "gpu.nvidia.com", "devices": [{"name": device} for device in devices]}
        made = msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)
        self.core.seen.put(made)
        return made

    def condition(self, kind: str) -> Condition:
        told = self.core.decide(self.now_s, bytes).notices
        self.noticed += [(one.reason, one.note) for one in told if not one.node]
        (found,) = [one for one in self.core.conditions if one.type == kind]
        return found

    def events(self, reason: str) -> list[str]:
        return [note for kind, note in self.noticed if kind == reason]


def test_a_device_plugin_on_enrolled_nodes_is_told_by_one_event_until_it_has_gone() -> None:
    world, kind = World(), "DevicePluginAlone"
    world.node("n1")
    assert world.condition(kind).status == "True"
    world.node("n1", gpu="8")
    found = world.condition(kind)
    assert (found.status, found.reason) == ("False", "OtherDevicePlugin")
    assert "nvidia.com/gpu: n1;" in found.message
    for i in range(2, 7):
        world.node(f"n{i}", gpu="8")
        assert world.condition(kind).status == "False"
    assert "n1, n2, n3 and 3 more" in world.condition(kind).message
    assert len(world.events("OtherDevicePlugin")) == 1, "more nodes are no more Events"
    for i in range(1, 7):
        world.node(f"n{i}", gpu="0")
    assert world.condition(kind).status == "True"
    world.node("n1", gpu="8")
    world.condition(kind)
    assert len(world.events("OtherDevicePlugin")) == 2, "it is there again"


def test_a_node_that_is_gone_or_not_enrolled_is_no_problem() -> None:
    world, kind = World(), "DevicePluginAlone"
    world.node("n1", labels={"kerf.dev/enrolled": "false"}, gpu="8")
    assert world.condition(kind).status == "True"
    enrolled = world.node("n2", gpu="8")
    assert world.condition(kind).status == "False"
    world.core.seen.gone(enrolled)
    assert world.condition(kind).status == "True"


def test_without_enrolment_the_label_is_enough() -> None:
    world = World(enrolment=False)
    world.node("n1", labels={"kerf.dev/enrolled": "false"}, gpu="8")
    assert world.condition("DevicePluginAlone").status == "False"


def test_slices_of_nvidias_driver_are_a_problem_while_they_have_devices() -> None:
    """A slice without devices has the counters that partitions share."""
    world, kind = World(), "DraDriverAlone"
    world.node("n1")
    world.slice("counters", "n1")
    world.slice("elsewhere", "n2", "gpu-0")
    assert world.condition(kind).status == "True"
    made = world.slice("s1", "n1", "gpu-0", "gpu-1")
    found = world.condition(kind)
    assert (found.status, found.reason) == ("False", "OtherDraDriver")
    assert "given twice: n1;" in found.message
    world.slice("s1", "n1")
    assert world.condition(kind).status == "True"
    world.core.seen.put(made)
    assert world.condition(kind).status == "False"
    world.core.seen.gone(made)
    assert world.condition(kind).status == "True"
    assert len(world.events("OtherDraDriver")) == 2


def test_discovery_names_enrolled_nodes_without_a_gpu_and_others_with_one() -> None:
    world = World()
    world.node("bare", labels={f"{NFD}cpu-model.family": "6"})
    assert world.condition("NodesHaveGpus").status == "True", "it may not be set up to report PCI devices"
    for i in range(4):
        meta = {"name": f"gpu{i}", "labels": {f"{NFD}pci-0302_10de.present": "true"}}
        world.core.seen.put(msgspec.convert({"metadata": meta}, Node))
    found = world.condition("NodesHaveGpus")
    assert (found.status, found.reason) == ("False", "NoGpuDiscovered")
    assert "on enrolled nodes: bare;" in found.message
    found = world.condition("NodesEnrolled")
    assert (found.status, found.message) == (
        "True",
        "enrolled nodes: 1; with GPUs and not enrolled: 4 (gpu0, gpu1, gpu2 and 1 more)",
    )


def test_an_installation_without_nodes_names_those_that_could_be_enrolled() -> None:
    world = World()
    meta = {"name": "gpu", "labels": {f"{NFD}pci-10de.present": "true"}}
    world.core.seen.put(msgspec.convert({"metadata": meta}, Node))
    found = world.condition("NodesEnrolled")
    assert found.reason == "NoNodes"
    assert found.message.endswith("; with GPUs and not enrolled: 1 (gpu)")
    world.core.seen.put(msgspec.convert({"metadata": meta | {"name": "more"}}, Node))
    assert world.condition("NodesEnrolled").message.endswith(": 2 (gpu, more)")
    assert len(world.events("NoNodes")) == 1


def test_of_a_nodes_status_only_names_of_resources_are_kept() -> None:
    """Their status is long; of it nothing more is asked."""
    world = World()
    world.node("n1", gpu="8")
    assert world.core.seen.nodes["n1"].status.allocatable == {}
    assert world.core.seen.neighbours["n1"].resources == ("nvidia.com/gpu",)
