"""The use of a GPU: processes by cgroup, pods by lease, and all other processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.devices.usage import GpuProcesses, Process, Share, sample, shares
from services.node_agent.processes.owner import Owner, owner_in, owner_of
from shared.contracts.node_commands import LiveSlice
from tests.unit.services.node_agent.devices.machine import TWO, Machine

UID = "0e6f8e2a-8f1c-4b9e-9d53-0a6d6c9f0001"
HEX = "4f" * 32
POD = Owner(UID, HEX)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
            f"cri-containerd-{HEX}.scope\n",
            POD,
        ),
        (f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{HEX}.scope/container\n", POD),
        (f"0::/kubepods/besteffort/pod{UID}/{HEX}\n", POD),
        (f"12:cpu,cpuacct:/kubepods/burstable/pod{UID}/{HEX}\n4:memory:/kubepods/burstable/pod{UID}/{HEX}\n", POD),
        (f"1:name=systemd:/\n0::/system.slice/kubelet.service/kubepods/pod{UID}/{HEX}\n", POD),
        (f"0::/../../kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-{HEX}.scope\n", POD),
        (f"0::/kubepods/pod{UID}\n", Owner(UID)),
        (f"0::/kubepods/pod{'ab' * 16}/{HEX}\n", Owner("ab" * 16, HEX)),
        ("0::/system.slice/nvidia-persistenced.service\n", Owner()),
        (f"0::/system.slice/docker-{HEX}.scope\n", Owner()),
        ("0::/podman/123\n", Owner()),
        ("", Owner()),
    ],
    ids=[
        "systemd v2",
        "cri-o",
        "cgroupfs",
        "v1",
        "nested",
        "seen from another cgroup",
        "the pod's own",
        "static pod",
        "service",
        "docker",
        "podman",
        "empty",
    ],
)
def test_a_cgroup_names_pod_and_container(text: str, found: Owner) -> None:
    assert owner_in(text) == found


def test_an_ended_process_has_no_owner(tmp_path: Path) -> None:
    assert owner_of(1, tmp_path) is None
    assert owner_of(os.getpid()) == Owner()


def process(pid: int, mib: int | None = 100, sm: int | None = None, bandwidth: int | None = None) -> Process:
    return Process(pid=pid, mib=mib, sm_milli=sm, bandwidth_milli=bandwidth)


OWNERS = {1: Owner("u-a", "c1"), 2: Owner("u-a", "c2"), 3: Owner("u-b", "c3"), 4: Owner(), 5: None}


def test_processes_are_summed_by_pod_and_foreign_ones_separately() -> None:
    found, foreign = shares(
        [process(1, 100, 200), process(2, 50, 100), process(3, 7), process(4, 30, 900), process(5, 1000)],
        frozenset({"u-a"}),
        OWNERS.get,
    )
    assert found == (Share(pod_uid="u-a", memory_mib=150, sm_milli=300, processes=2),)
    assert foreign == 37, "of pod b, which has no slice, and of the host"


def test_values_that_the_driver_does_not_report_stay_unknown() -> None:
    found, _ = shares([process(1, None)], frozenset({"u-a"}), OWNERS.get)
    assert found == (Share(pod_uid="u-a", memory_mib=0, sm_milli=None, processes=1),)


def live(uid: str, container: str, **gpus: tuple[int, int]) -> LiveSlice:
    return LiveSlice(
        uid=uid,
        namespace="team",
        name=f"pod-{uid}",
        container=container,
        grant_id=f"g-{uid}",
        strategy="advisory",
        gpus=gpus,
    )


def test_a_sample_has_the_use_and_the_grant() -> None:
    gpu = GpuProcesses(uuid="A", used_mib=300, sm_milli=400, processes=(process(1, 100, 200), process(3, 50)))
    taken = sample(
        "n",
        5,
        [gpu],
        [live("u-a", "main", A=(1000, 300)), live("u-b", "x", A=(500, 100)), live("u-b", "y", A=(20, 10))],
        OWNERS.get,
    )
    assert (taken.node, taken.at_ms, taken.gpus[0].used_mib, taken.gpus[0].foreign_mib, taken.gpus[0].sm_milli) == (
        "n",
        5,
        300,
        0,
        400,
    )
    first, second = taken.gpus[0].slices
    assert (
        first.name,
        first.container,
        first.memory_mib,
        first.granted_memory_mib,
        first.sm_milli,
        first.granted_compute_milli,
    ) == (
        "pod-u-a",
        "main",
        100,
        1000,
        200,
        300,
    )
    assert (second.container, second.memory_mib, second.granted_memory_mib, second.sm_milli) == ("", 50, 520, None), (
        "two containers, attributed by pod alone"
    )


def test_a_pod_on_a_gpu_that_it_was_not_granted_is_foreign_there() -> None:
    taken = sample(
        "n",
        5,
        [GpuProcesses(uuid="B", used_mib=100, processes=(process(1, 100),))],
        [live("u-a", "main", A=(1000, 300))],
        OWNERS.get,
    )
    assert (taken.gpus[0].foreign_mib, taken.gpus[0].slices) == (100, ())


async def test_processes_with_memory_and_sms_are_read_from_nvml(machine: Machine) -> None:
    machine.also("process 0 11 2048\nsm 0 11 35 20\nprocess 0 12 512\nbusy 0 60\n")
    watched = NvmlDevices(timeout_s=5.0, sysfs=Path("/nowhere"))
    await watched.inventory("n", "b")
    first, second = await watched.processes(1)
    assert (first.uuid, first.used_mib, first.sm_milli) == ("GPU-a", 2560, 600)
    assert first.processes == (process(11, 2048, 350, 200), process(12, 512))
    assert second.processes == ()


async def test_processes_of_graphics_are_read_and_those_of_both_kinds_once(machine: Machine) -> None:
    """NVML lists a process that does both twice, each time with all of its memory."""
    machine.also("process 0 11 2048\nsm 0 11 35\ngraphics 0 11 2100\ngraphics 0 12 512\ngraphics 1 13 64\n")
    watched = NvmlDevices(timeout_s=5.0, sysfs=Path("/nowhere"))
    await watched.inventory("n", "b")
    first, second = await watched.processes(1)
    assert first.processes == (process(11, 2100, 350, 0), process(12, 512))
    assert second.processes == (process(13, 64),)


async def test_the_processes_of_some_gpus_are_read_without_a_gpu_that_does_not_answer(machine: Machine) -> None:
    machine.also("process 0 11 2048\nprocess 1 12 512\n")
    watched = NvmlDevices(timeout_s=5.0, sysfs=Path("/nowhere"))
    await watched.inventory("n", "b")
    assert await watched.running({"GPU-b", "GPU-unknown"}) == {"GPU-b": (process(12, 512),)}
    machine.become(TWO.replace("0 9 0 0 0", "0 9 0 0 15"))
    assert (await watched.running({"GPU-a", "GPU-b"})).keys() == {"GPU-b"}
    silent = NvmlDevices(timeout_s=5.0, sysfs=Path("/nowhere"), known=await watched.inventory("n", "b"))
    machine.become("init 9\n" + TWO)
    assert await silent.running({"GPU-a", "GPU-b"}) == {}


async def test_in_mig_mode_processes_have_instances_and_no_sms(machine: Machine) -> None:
    machine.also("mig 1 9 0 3g.71gb 71000 MIG-b\nprocess 1 11 2048 9\nsm 1 11 35\n")
    watched = NvmlDevices(timeout_s=5.0, sysfs=Path("/nowhere"))
    await watched.inventory("n", "b")
    (_, second) = await watched.processes(1)
    assert second.processes == (Process(pid=11, mib=2048, sm_milli=None, gpu_instance=9),)


async def test_a_gpu_that_does_not_answer_is_left_out(machine: Machine) -> None:
    watched = NvmlDevices(timeout_s=5.0, sysfs=Path("/nowhere"))
    await watched.inventory("n", "b")
    machine.become(TWO.replace("0 9 0 0 0", "0 9 0 0 15"))
    assert [gpu.uuid for gpu in await watched.processes(1)] == ["GPU-b"]
