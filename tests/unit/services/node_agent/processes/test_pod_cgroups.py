"""A pod's cgroup is found wherever the kubelet creates it."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.processes.pod_cgroups import PodCgroups
from tests.support.kubelet_agent import uid
from tests.support.pod_cgroups import pod_tree
from tests.support.waiting import eventually

UID = "3f0c9b1e-7a55-4c1b-9a43-2f6f0f3a8d11"
OTHER = "9d1f3b5c-0000-4c1b-9a43-2f6f0f3a8d11"
UNDERSCORED = UID.replace("-", "_")

LAYOUTS = {
    "v2, cgroupfs": f"kubepods/burstable/pod{UID}",
    "v2, cgroupfs, guaranteed": f"kubepods/pod{UID}",
    "v2, systemd": f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice",
    "v2, systemd, under a cgroup root": (
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{UNDERSCORED}.slice"
    ),
    "v2, systemd, under a deep cgroup root": (
        "a.slice/a-b.slice/a-b-c.slice/a-b-c-d.slice/a-b-c-d-kubepods.slice/a-b-c-d-kubepods-burstable.slice/"
        f"a-b-c-d-kubepods-burstable-pod{UNDERSCORED}.slice"
    ),
    "in Docker": f"docker/0123abcd/kubelet/kubepods/burstable/pod{UID}",
}


@pytest.mark.parametrize("path", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("hierarchy", ["", "memory"], ids=["v2", "v1"])
def test_a_pod_cgroup_is_found_until_it_is_removed(tmp_path: Path, path: str, hierarchy: str) -> None:
    if not hierarchy:
        (tmp_path / "cgroup.procs").write_text("")
    folder = tmp_path / hierarchy / path
    (folder / "cri-containerd-0a").mkdir(parents=True)
    cgroups = PodCgroups(tmp_path)
    assert (cgroups.present({UID, OTHER}), cgroups.has_pod_cgroups()) == ({UID}, True)
    (folder / "cri-containerd-0a").rmdir()
    assert cgroups.present({UID}), "its containers have ended, and the kubelet may start others"
    folder.rmdir()
    assert not cgroups.present({UID})


def test_with_cgroup_v1_every_hierarchy_counts(tmp_path: Path) -> None:
    for controller in ("memory", "pids"):
        (tmp_path / controller / "kubepods" / f"pod{UID}").mkdir(parents=True)
    cgroups = PodCgroups(tmp_path)
    assert cgroups.present({UID})
    for controller, left in (("pids", True), ("memory", False)):
        (tmp_path / controller / "kubepods" / f"pod{UID}").rmdir()
        assert bool(cgroups.present({UID})) is left


def test_a_host_without_pod_cgroups_is_detected(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "system.slice" / f"pod{UID}").mkdir(parents=True)
    cgroups = PodCgroups(tmp_path)
    assert not cgroups.has_pod_cgroups()
    assert not cgroups.present({UID}), "a systemd service may have any name"


def test_the_root_of_version_2_counts_only_if_it_has_the_pods(tmp_path: Path) -> None:
    """A limit that holds there would hold for no pod, and every container that needs one would be refused."""
    for hierarchy in ("memory", "unified"):
        (tmp_path / hierarchy).mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("")
    (tmp_path / "memory" / "kubepods").mkdir()
    cgroups = PodCgroups(tmp_path)
    assert cgroups.has_pod_cgroups()
    assert cgroups.root_v2() is None
    (tmp_path / "unified" / "kubepods.slice").mkdir()
    assert cgroups.root_v2() == tmp_path / "unified"


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_cgroup_that_is_removed_while_it_is_read_has_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """The kernel answers ENODEV for a file that is open already. The other containers of its pod count."""
    (tmp_path / "cgroup.procs").write_text("")
    for pod in (UID, OTHER):
        for container in ("gone", "runs") if pod == UID else ("gone",):
            folder = tmp_path / "kubepods" / f"pod{pod}" / container
            folder.mkdir(parents=True)
            (folder / "cgroup.procs").write_text("7\n")
    if version == "v2":
        (tmp_path / "kubepods" / f"pod{UID}" / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        (tmp_path / "kubepods" / f"pod{OTHER}" / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    removed, read = ("gone", f"pod{OTHER}"), Path.read_text

    def read_removed(path: Path, *args: Any) -> str:
        if path.parent.name in removed:
            raise OSError(errno.ENODEV, "No such device")
        return read(path, *args)

    monkeypatch.setattr(Path, "read_text", read_removed)
    assert PodCgroups(tmp_path).populated() == {UID}


async def test_a_process_that_was_killed_and_cannot_end_keeps_the_cgroup_of_its_pod() -> None:
    """As one that waits in a driver for ever: a cgroup that is gone shows that nothing runs, without NVML.

    Here the freezer of cgroup v1 holds it. A process that is killed while it is frozen ends when it is thawed.
    """
    with pod_tree("v1") as tree:
        process = await asyncio.create_subprocess_exec("sleep", "1000")
        try:
            tree.add("stuck", process.pid)
            pod = tree.root / "kubepods" / f"pod{uid('stuck')}"
            tree.freeze("stuck")
            await eventually(lambda: (pod / "freezer.state").read_text().strip() == "FROZEN")
            process.kill()
            with pytest.raises(OSError, match="busy"):
                (pod / "main").rmdir()
            assert PodCgroups(tree.root).present((uid("stuck"),)) == {uid("stuck")}
            assert process.returncode is None
        finally:
            tree.thaw("stuck")
            if process.returncode is None:
                process.kill()
            await process.wait()
        (pod / "main").rmdir()
        pod.rmdir()
        assert PodCgroups(tree.root).present((uid("stuck"),)) == frozenset()
