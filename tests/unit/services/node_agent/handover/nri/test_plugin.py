"""The plugin's answers to the runtime."""

from __future__ import annotations

import pytest

from services.node_agent.handover.nri.affinity import Allowed
from services.node_agent.handover.nri.plugin import NOTHING, CpuPlugin, promised
from services.node_agent.handover.nri.session import Unimplemented
from services.node_agent.nri_api import nri_pb2 as pb
from shared.model.gpu import Gpu

GIB = 1 << 30
GPUS = {("u", "near"): (Gpu(uuid="GPU-0", index=0, model="H100", memory_mib=1, cpus="0-3", numa_node=0),)}
GROUP = "/kubepods/podu"
ALLOWED = Allowed(cpus=frozenset(range(8)), mems=frozenset({0, 1}), node_bytes={0: 4 * GIB, 1: 4 * GIB})


class PluginHarness:
    """A plugin, and the outcomes that it reported for containers with GPUs."""

    def __init__(self, *, memory: bool = False) -> None:
        self.outcomes: list[str] = []
        self.plugin = CpuPlugin(
            gpus_of=lambda uid, container: GPUS.get((uid, container), ()),
            allowed=lambda group: ALLOWED if group == GROUP else None,
            memory=memory,
            decided=lambda outcome, took_s: self.outcomes.append(outcome),
        )

    def create(self, name: str = "near", *, group: str = GROUP, **resources: int | str) -> tuple[str, str]:
        """The CPUs and memory nodes that the container gets; empty if it keeps its own."""
        container = pb.Container(
            id=f"id-{len(self.outcomes)}", name=name, linux=pb.LinuxContainer(resources=_resources(**resources))
        )
        pod = pb.PodSandbox(uid="u", linux=pb.LinuxPodSandbox(cgroup_parent=group))
        reply = self.plugin.answer(
            "CreateContainer", pb.CreateContainerRequest(pod=pod, container=container).SerializeToString()
        )
        cpu = pb.CreateContainerResponse.FromString(reply).adjust.linux.resources.cpu
        return cpu.cpus, cpu.mems

    def update(self, container: str, before: pb.LinuxResources, **resources: int | str) -> list[tuple[str, str, str]]:
        request = pb.UpdateContainerRequest(
            pod=pb.PodSandbox(uid="u", linux=pb.LinuxPodSandbox(cgroup_parent=GROUP)),
            container=pb.Container(id=container, name="near", linux=pb.LinuxContainer(resources=before)),
            linux_resources=_resources(**resources),
        )
        reply = pb.UpdateContainerResponse.FromString(
            self.plugin.answer("UpdateContainer", request.SerializeToString())
        )
        return [(one.container_id, one.linux.resources.cpu.cpus, one.linux.resources.cpu.mems) for one in reply.update]

    def stop(self, container: str) -> None:
        self.plugin.answer(
            "StopContainer", pb.StopContainerRequest(container=pb.Container(id=container)).SerializeToString()
        )


def _resources(
    *, shares: int = 2, quota: int = 0, memory: int = 0, cpus: str = "", mems: str = ""
) -> pb.LinuxResources:
    made = pb.LinuxResources(cpu=pb.LinuxCPU(shares=pb.OptionalUInt64(value=shares), cpus=cpus, mems=mems))
    if quota:
        made.cpu.quota.value, made.cpu.period.value = quota, 100_000
    if memory:
        made.memory.limit.value = memory
    return made


@pytest.mark.parametrize(
    ("resources", "milli"),
    [
        (_resources(shares=4096), 4000),
        (_resources(shares=102), 100),
        (_resources(), 2),
        (_resources(shares=102, quota=150_000), 1500),
        (_resources(shares=2048, quota=-1), 2000),
        (pb.LinuxResources(), 0),
    ],
)
def test_a_promise_is_read_from_the_cgroup_settings(resources: pb.LinuxResources, milli: int) -> None:
    assert promised(resources).cpu_milli == milli


@pytest.mark.parametrize(
    ("asked", "cpus", "outcome"),
    [
        ({}, "0-3", ["near"]),
        ({"quota": 400_000}, "0-3", ["near"]),
        ({"quota": 400_001}, "0-3", ["near"]),  # at most a thousandth more
        ({"quota": 500_000}, "", ["too-few-cpus"]),
        ({"cpus": "6-7"}, "", ["own-cpuset"]),
        ({"mems": "1"}, "", ["own-cpuset"]),
        ({"group": "/elsewhere"}, "", ["not-known"]),
        ({"name": "plain"}, "", []),
    ],
)
def test_a_container_with_gpus_gets_the_cpus_near_them(
    asked: dict[str, int | str], cpus: str, outcome: list[str]
) -> None:
    harness = PluginHarness()
    assert harness.create(**asked) == (cpus, "")  # type: ignore[arg-type]
    assert harness.outcomes == outcome


def test_memory_is_bound_only_if_configured() -> None:
    assert PluginHarness().create(memory=GIB) == ("0-3", "")
    assert PluginHarness(memory=True).create(memory=GIB) == ("0-3", "0")


def test_a_promise_ends_with_its_container() -> None:
    harness = PluginHarness()
    assert [harness.create(shares=3072)[0] for _ in range(2)] == ["0-3", ""]
    harness.stop("id-0")
    assert harness.create(shares=3072) == ("0-3", "")


def test_promises_of_running_containers_come_from_the_runtime() -> None:
    harness = PluginHarness()
    for more, container in (
        (True, pb.Container(id="plain")),
        (False, pb.Container(id="old", linux=pb.LinuxContainer(resources=_resources(shares=3072, cpus="0-3")))),
    ):
        reply = harness.plugin.answer(
            "Synchronize", pb.SynchronizeRequest(containers=[container], more=more).SerializeToString()
        )
        assert pb.SynchronizeResponse.FromString(reply).more is more
        assert harness.plugin.ready is not more
    assert harness.create(shares=3072) == ("", "")
    assert harness.outcomes == ["cpus-promised"]


def test_a_container_promised_more_than_its_cpus_have_may_use_all_cpus() -> None:
    harness = PluginHarness(memory=True)
    harness.create(quota=100_000, memory=GIB)
    before = _resources(quota=100_000, memory=GIB, cpus="0-3", mems="0")
    assert harness.update("id-0", before, quota=400_000) == []
    assert harness.update("id-0", before, quota=500_000) == [("id-0", "0-7", "0-1")]
    assert harness.create(quota=400_000) == ("0-3", "")
    assert harness.outcomes == ["near", "widened", "near"]


def test_a_container_with_a_cpuset_is_left_unchanged() -> None:
    harness = PluginHarness()
    harness.create(quota=400_000)
    assert harness.update("id-0", _resources(quota=400_000, cpus="0-3"), quota=500_000, cpus="0-4") == []
    assert harness.create(quota=400_000) == ("0-3", "")


def test_the_container_starts_unchanged_after_any_error() -> None:
    """An error would stop the container; an empty answer changes nothing."""
    harness = PluginHarness()
    assert [
        harness.plugin.answer(method, b"\xff")
        for method in ("CreateContainer", "UpdateContainer", "StopContainer", "Synchronize")
    ] == [NOTHING] * 4
    assert harness.outcomes == ["failed"] * 4


def test_the_plugin_subscribes_to_create_update_and_stop_only() -> None:
    reply = pb.ConfigureResponse.FromString(PluginHarness().plugin.answer("Configure", b""))
    assert reply.events == 1 << 3 | 1 << 7 | 1 << 9
    with pytest.raises(Unimplemented):
        PluginHarness().plugin.answer("RunPodSandbox", b"")
