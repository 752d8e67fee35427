"""Freezing a pod by its cgroup: of files, and of the kernel's own cgroups."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.processes.freezing import Freezer
from services.node_agent.processes.killing import PodKiller
from services.node_agent.processes.owner import Owner
from services.node_agent.processes.pod_cgroups import PodCgroups
from tests.support.kubelet_agent import uid
from tests.support.pod_cgroups import VERSIONS, PodTree, pod_tree
from tests.support.waiting import eventually


@pytest.fixture(params=VERSIONS)
def tree(request: pytest.FixtureRequest) -> Iterator[PodTree]:
    with pod_tree(request.param) as made:
        yield made


@pytest.fixture
def process(tree: PodTree) -> Iterator[subprocess.Popen[str]]:
    """A process of pod a that answers each line."""
    script = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as made:
        tree.add("a", made.pid)
        yield made
        made.kill()
        tree.thaw("a")


def answers(process: subprocess.Popen[str]) -> bool:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("there?\n")
    process.stdin.flush()
    return process.stdout.readline() == "there?\n"


def is_stopped(process: subprocess.Popen[str], tree: PodTree) -> bool:
    events = tree.root / "kubepods" / f"pod{uid('a')}" / "cgroup.events"
    if events.exists():
        return "frozen 1" in events.read_text()
    return events.with_name("freezer.state").read_text() == "FROZEN\n"


async def test_a_frozen_pod_stops_and_goes_on_after_the_thaw(tree: PodTree, process: subprocess.Popen[str]) -> None:
    freezer = Freezer(PodCgroups(tree.root))
    assert answers(process)
    assert freezer.freeze(uid("a"))
    await eventually(lambda: is_stopped(process, tree))
    freezer.thaw(uid("a"))
    assert answers(process)


async def test_a_frozen_pod_is_killed_and_its_processes_end_with_the_thaw(
    tree: PodTree, process: subprocess.Popen[str]
) -> None:
    """With cgroup v1 a frozen process ends only when it is thawed."""
    freezer = Freezer(PodCgroups(tree.root))
    freezer.freeze(uid("a"))
    killer = PodKiller(lambda _: [process.pid], lambda _: Owner(uid("a")))
    killed, all_ended = await killer.kill(uid("a"), lambda: freezer.thaw(uid("a")))
    assert (killed, all_ended) == ({process.pid}, True)
    assert process.wait() == -9


def test_only_pods_that_are_frozen_are_thawed(tree: PodTree, process: subprocess.Popen[str]) -> None:
    freezer = Freezer(PodCgroups(tree.root))
    assert freezer.thaw_all() == ((), {})
    tree.freeze("a")
    assert freezer.thaw_all() == ((uid("a"),), {})
    assert answers(process)


def test_a_pod_without_a_cgroup_is_not_frozen_and_a_thaw_of_it_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "memory" / "kubepods" / f"pod{uid('a')}").mkdir(parents=True)
    freezer = Freezer(PodCgroups(tmp_path))
    assert not freezer.freeze(uid("a")), "its only hierarchy has no freezer"
    freezer.thaw(uid("a"))
    freezer.thaw(uid("b"))


def test_of_several_hierarchies_the_one_with_a_freezer_is_taken(tmp_path: Path) -> None:
    for hierarchy in ("cpu", "freezer", "pids"):
        (tmp_path / hierarchy / "kubepods" / f"pod{uid('a')}").mkdir(parents=True)
    file = tmp_path / "freezer" / "kubepods" / f"pod{uid('a')}" / "freezer.state"
    file.write_text("THAWED\n")
    freezer = Freezer(PodCgroups(tmp_path))
    assert freezer.freeze(uid("a"))
    assert file.read_text() == "FROZEN"
    freezer.thaw(uid("a"))
    assert file.read_text() == "THAWED"


def test_a_pod_with_cgroups_of_both_versions_is_frozen_by_both(tmp_path: Path) -> None:
    """Only one of them has its processes."""
    files = []
    for hierarchy, name in (("freezer", "freezer.state"), ("unified", "cgroup.freeze")):
        folder = tmp_path / hierarchy / "kubepods" / f"pod{uid('a')}"
        folder.mkdir(parents=True)
        (folder / name).write_text("")
        files.append(folder / name)
    freezer = Freezer(PodCgroups(tmp_path))
    assert freezer.freeze(uid("a"))
    assert [file.read_text() for file in files] == ["FROZEN", "1"]
    assert freezer.thaw_all() == ((uid("a"),), {})
    assert [file.read_text() for file in files] == ["THAWED", "0"]


def test_a_pod_that_cannot_be_thawed_leaves_no_other_frozen(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("")
    files = {name: tmp_path / "kubepods" / f"pod{uid(name)}" / "cgroup.freeze" for name in "abc"}
    for file in files.values():
        file.parent.mkdir(parents=True)
    files["a"].write_text("1")
    files["b"].mkdir()
    files["c"].write_text("1")
    thawed, failed = Freezer(PodCgroups(tmp_path)).thaw_all()
    assert (set(thawed), set(failed)) == ({uid("a"), uid("c")}, {uid("b")})
    assert [files[name].read_text() for name in "ac"] == ["0", "0"]


def test_a_pod_whose_cgroup_is_removed_between_opening_and_use_is_gone(
    tree: PodTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel answers ENODEV then, not ENOENT."""
    folder = tree.root / "kubepods" / f"pod{uid('a')}"
    folder.mkdir(parents=True)
    opened = Path.open

    def then_removed(file: Path, *args: Any, **more: Any) -> Any:
        made = opened(file, *args, **more)
        if file.parent == folder:
            folder.rmdir()
        return made

    freezer = Freezer(PodCgroups(tree.root))
    monkeypatch.setattr(Path, "open", then_removed)
    assert freezer.thaw_all() == ((), {})
    folder.mkdir()
    freezer.thaw(uid("a"))
