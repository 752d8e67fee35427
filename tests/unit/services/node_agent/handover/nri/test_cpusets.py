"""The CPUs and memory nodes of a pod, by its cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.handover.nri.affinity import Allowed
from services.node_agent.handover.nri.cpusets import PodCpusets

POD = "0b0a7e54-6d0e-4f36-8a2b-3f1f0f9f8e11"
SYSTEMD = f"kubepods-burstable-pod{POD.replace('-', '_')}.slice"


def group(folder: Path, cpus: str, *, suffix: str = "", mems: str = "0-1") -> None:
    folder.mkdir(parents=True)
    (folder / f"cpuset.cpus{suffix}").write_text(f"{cpus}\n")
    (folder / f"cpuset.mems{suffix}").write_text(f"{mems}\n")


@pytest.mark.parametrize(
    ("parent", "folder"),
    [
        (f"/kubepods/burstable/pod{POD}", f"kubepods/burstable/pod{POD}"),
        (SYSTEMD, f"kubepods.slice/kubepods-burstable.slice/{SYSTEMD}"),
        (f"/kubelet.slice/{SYSTEMD}", f"kubepods.slice/kubepods-burstable.slice/{SYSTEMD}"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_cpusets_are_read_in_both_cgroup_versions_and_under_both_drivers(
    tmp_path: Path, parent: str, folder: str, version: int
) -> None:
    if version == 2:
        (tmp_path / "cgroup.controllers").touch()
        group(tmp_path / folder, "0-3", suffix=".effective")
    else:
        (tmp_path / "cpu,cpuacct").mkdir()
        group(tmp_path / "cpuset" / folder, "0-3")
    found = PodCpusets(tmp_path, tmp_path / "sys", sizes=False).allowed(parent)
    assert found == Allowed(cpus=frozenset(range(4)), mems=frozenset({0, 1}))


def test_the_sizes_of_memory_nodes_are_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    group(tmp_path / "pod", "0", suffix=".effective")
    (tmp_path / "sys/devices/system/node/node0").mkdir(parents=True)
    (tmp_path / "sys/devices/system/node/node0/meminfo").write_text(
        "Node 0 MemTotal:       16 kB\nNode 0 MemFree:        1 kB\n"
    )
    found = PodCpusets(tmp_path, tmp_path / "sys", sizes=True).allowed("/pod")
    assert found is not None
    assert found.node_bytes == {0: 16_384}


@pytest.mark.parametrize("cpus", ["", "nonsense"])
def test_unreadable_cpusets_are_unknown(tmp_path: Path, cpus: str) -> None:
    (tmp_path / "cgroup.controllers").touch()
    group(tmp_path / "pod", cpus, suffix=".effective")
    cpusets = PodCpusets(tmp_path, tmp_path, sizes=False)
    assert [cpusets.allowed(parent) for parent in ("/pod", "/elsewhere", "")] == [None, None, None]
    assert PodCpusets(tmp_path / "none", tmp_path, sizes=False).allowed("/pod") is None
