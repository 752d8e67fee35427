"""Whether a pod's memory limits have room for its GPU memory, with cgroups made of plain files."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.strategies.host_memory import HostMemoryUnknown, park_mib, processes, refusal
from shared.model.units import MIB
from tests.support.kubelet_agent import uid
from tests.support.pod_cgroups import pod_tree


def cgroup(path: Path, *, limit: str = "max", current: int = 0, pids: str = "") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "memory.max").write_text(f"{limit}\n")
    (path / "memory.current").write_text(f"{current}\n")
    (path / "cgroup.procs").write_text(pids)
    return path


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 1048576 kB\nSwapFree: 0 kB\n")
    return tmp_path / "meminfo"


def test_processes_are_found_in_the_pods_containers(tmp_path: Path) -> None:
    pod = cgroup(tmp_path / "pod")
    one = cgroup(pod / "one", pids="12\n13\n")
    cgroup(pod / "pause")
    assert processes(pod) == {one: (12, 13)}


def test_an_agent_in_its_own_pid_namespace_reports_that_it_sees_no_processes(tmp_path: Path) -> None:
    with pytest.raises(HostMemoryUnknown, match="hostPID"):
        processes(cgroup(tmp_path / "pod", pids="0\n"))


@pytest.mark.parametrize(
    ("limit", "current", "refused"),
    [
        ("max", 0, ""),
        (str(700 * MIB), 200 * MIB, ""),
        (str(700 * MIB), 201 * MIB, "room for 499 MiB, but it has 500 MiB on GPUs"),
    ],
)
@pytest.mark.parametrize("where", ["pod", "container"])
def test_the_pods_and_the_containers_limit_both_need_room(
    tmp_path: Path, meminfo: Path, limit: str, current: int, refused: str, where: str
) -> None:
    said = {"limit": limit, "current": current}
    pod = cgroup(tmp_path / "pod", **(said if where == "pod" else {}))  # type: ignore[arg-type]
    one = cgroup(pod / "one", **(said if where == "container" else {}))  # type: ignore[arg-type]
    found = refusal(pod, {one: 500 * MIB}, 500 * MIB, meminfo)
    assert refused in found
    assert bool(found) == bool(refused)


def test_the_limit_of_a_container_counts_where_it_has_cgroups_of_its_own(tmp_path: Path, meminfo: Path) -> None:
    """As with systemd inside. The kernel ended the program that was to be saved."""
    pod = cgroup(tmp_path / "pod")
    container = cgroup(pod / "one", limit=str(10 * 1024 * MIB), current=9 * 1024 * MIB)
    parts = [cgroup(container / "init" / f"{name}.service") for name in "ab"]
    cgroup(container / "init")
    assert "room for 1024 MiB, but it has 1025" in refusal(pod, {parts[0]: 1025 * MIB}, 1025 * MIB, meminfo)
    assert refusal(pod, dict.fromkeys(parts, 1024 * MIB), 1024 * MIB, meminfo) == "", "it is one container's, once"


def test_a_pod_without_a_limit_needs_room_on_its_node(tmp_path: Path, meminfo: Path) -> None:
    assert "the node has 1024 MiB of memory left" in refusal(cgroup(tmp_path / "pod"), {}, 1025 * MIB, meminfo)


def test_unknown_host_memory_is_reported(tmp_path: Path, meminfo: Path) -> None:
    pod = cgroup(tmp_path / "pod")
    (pod / "memory.max").unlink()
    with pytest.raises(HostMemoryUnknown, match="cgroups of version 1"):
        refusal(pod, {}, 1, meminfo)


@pytest.mark.parametrize("when", ["listed", "opened"])
def test_a_cgroup_that_the_runtime_removes_meanwhile_has_no_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """As while a pod's processes are being ended. The kernel answers ENODEV for a file that is open already."""
    for name in ("gone", "stays"):
        (tmp_path / name).mkdir()
    (tmp_path / "stays" / "cgroup.procs").write_text("7\n")
    list_folder, read = os.scandir, Path.read_text

    def list_removed(path: Any) -> Any:
        if when == "listed" and Path(path).name == "gone":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return list_folder(path)

    def read_removed(path: Path, *args: Any) -> str:
        if when == "opened" and path.parent.name == "gone":
            raise OSError(errno.ENODEV, "No such device")
        return read(path, *args)

    monkeypatch.setattr(os, "scandir", list_removed)
    monkeypatch.setattr(Path, "read_text", read_removed)
    assert processes(tmp_path) == {tmp_path / "stays": (7,)}


def test_a_container_cannot_hide_its_processes_in_a_threaded_cgroup() -> None:
    """The kernel lists no processes there, but in the cgroup that has it (EOPNOTSUPP)."""
    with pod_tree("v2") as tree, subprocess.Popen(["sleep", "60"]) as process:
        tree.add("a", process.pid)
        pod = tree.root / "kubepods" / f"pod{uid('a')}"
        (pod / "main" / "threads").mkdir()
        (pod / "main" / "threads" / "cgroup.type").write_text("threaded")
        (pod / "main" / "threads" / "cgroup.procs").write_text(str(process.pid))
        try:
            assert processes(pod) == {pod / "main": (process.pid,)}
        finally:
            process.kill()


@pytest.mark.parametrize(("setting", "offered"), [(None, 4), (0, 0), (3, 3), (100, 9)])
def test_half_of_the_hosts_memory_is_offered_or_what_the_setting_says_and_never_more_than_there_is(
    tmp_path: Path, setting: int | None, offered: int
) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: {9 * 1024} kB\nSwapTotal: 0 kB\n")
    assert park_mib(setting, tmp_path / "meminfo") == offered


@pytest.mark.parametrize(("setting", "offered"), [(None, 4), (9, 9), (20, 20), (100, 29)])
def test_swap_is_offered_as_far_as_the_setting_says(tmp_path: Path, setting: int | None, offered: int) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: {9 * 1024} kB\nSwapTotal: {20 * 1024} kB\n")
    assert park_mib(setting, tmp_path / "meminfo") == offered


SWAPS = [
    ({"limit": "max"}, {"limit": "max"}, ""),
    ({"limit": "max"}, {"limit": str(500 * MIB), "current": 12 * MIB}, ""),
    ({"limit": "max"}, {"limit": str(500 * MIB), "current": 13 * MIB}, "512 MiB of memory left and 487 MiB of swap"),
    ({"limit": str(487 * MIB)}, {"limit": "max"}, "512 MiB of memory left and 487 MiB of swap for it"),
    ({"limit": "max"}, {"limit": "0"}, "512 MiB of memory left, but"),
]


@pytest.mark.parametrize("inside", [[""], ["a", "b/c"]], ids=["", "with cgroups of its own"])
@pytest.mark.parametrize(("pod_swap", "one_swap", "refused"), SWAPS)
def test_swap_counts_as_far_as_the_pod_may_use_it(
    tmp_path: Path, pod_swap: dict[str, Any], one_swap: dict[str, Any], refused: str, inside: list[str]
) -> None:
    pod = cgroup(tmp_path / "pod")
    one = cgroup(pod / "one")
    parts = [cgroup(one / name) for name in inside]
    cgroup(one / "b")
    for folder, swap in ((pod, pod_swap), (one, one_swap)):
        (folder / "memory.swap.max").write_text(f"{swap['limit']}\n")
        (folder / "memory.swap.current").write_text(f"{swap.get('current', 0)}\n")
    (tmp_path / "meminfo").write_text(f"MemAvailable: {512 * 1024} kB\nSwapFree: {2048 * 1024} kB\n")
    for part in set(parts) - {one}:
        (part / "memory.swap.max").write_text("max\n")
    found = refusal(pod, dict.fromkeys(parts, 1000 * MIB), 1000 * MIB, tmp_path / "meminfo")
    assert refused in found
    assert bool(found) == bool(refused)


def test_a_kernel_that_counts_no_swap_gives_none(tmp_path: Path) -> None:
    pod = cgroup(tmp_path / "pod")
    (tmp_path / "meminfo").write_text(f"MemAvailable: {512 * 1024} kB\nSwapFree: {2048 * 1024} kB\n")
    assert "512 MiB of memory left, but" in refusal(pod, {pod: 513 * MIB}, 513 * MIB, tmp_path / "meminfo")


def test_no_more_swap_than_is_free_counts(tmp_path: Path) -> None:
    pod = cgroup(tmp_path / "pod")
    (pod / "memory.swap.max").write_text("max\n")
    (tmp_path / "meminfo").write_text(f"MemAvailable: {512 * 1024} kB\nSwapFree: {100 * 1024} kB\n")
    assert refusal(pod, {pod: 612 * MIB}, 612 * MIB, tmp_path / "meminfo") == ""
    assert "100 MiB of swap" in refusal(pod, {pod: 613 * MIB}, 613 * MIB, tmp_path / "meminfo")


def test_without_a_figure_of_the_hosts_memory_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("")
    with pytest.raises(HostMemoryUnknown, match="MemTotal"):
        park_mib(None, tmp_path / "meminfo")
