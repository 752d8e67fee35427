"""Attribution of memory to the containers that bypass their slices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.node_agent.strategies.attribution import attribute_escape, container_of, control_blocks_of
from services.node_agent.strategies.slices import Key

FIRST, SECOND = ("pod", "first"), ("pod", "second")
BOTH = (FIRST, SECOND)


@pytest.mark.parametrize(
    ("of", "seen", "counted", "attributed"),
    [
        ({1: FIRST, 2: SECOND}, {1: 400, 2: 5000}, {FIRST: 300, SECOND: 1000}, {SECOND: {2}}),
        ({1: FIRST, 2: SECOND, 3: SECOND}, {1: 5000, 2: 10, 3: 10}, {}, {FIRST: {1}}),
        ({1: FIRST, 2: SECOND}, {1: 5000, 2: 4000}, {}, {FIRST: {1}, SECOND: {2}}),
        ({1: FIRST}, {1: 100, 2: 5000}, {FIRST: 100, SECOND: 0}, {FIRST: {1, 2}, SECOND: {2}}),
        ({1: ("other", "x")}, {1: 5000}, {FIRST: 0, SECOND: 4000}, {FIRST: {1}}),
    ],
    ids=[
        "second",
        "first",
        "both",
        "a process without a visible control block may belong to any container",
        "a process with another pod's control block likewise",
    ],
)
def test_the_container_whose_processes_hold_uncounted_memory_is_found(
    of: dict[int, Key], seen: dict[int, int], counted: dict[Key, int], attributed: dict[Key, set[int]]
) -> None:
    assert attribute_escape(BOTH, seen, counted, of.get) == attributed


def test_a_process_belongs_to_the_container_whose_control_block_it_sees(tmp_path: Path) -> None:
    """A bind mount shows the same file under another name. The test uses a hard link."""
    folders = {key: tmp_path / key[1] for key in BOTH}
    for folder in folders.values():
        folder.mkdir()
        (folder / "counters").touch()
    inside = tmp_path / "proc" / "7" / "root" / "run" / "kerf"
    inside.mkdir(parents=True)
    os.link(folders[SECOND] / "counters", inside / "counters")
    control_blocks = control_blocks_of(folders)
    assert container_of(7, control_blocks, tmp_path / "proc") == SECOND
    assert container_of(8, control_blocks, tmp_path / "proc") is None


@pytest.mark.parametrize("link", ["run/kerf", "run/kerf/counters", "run"])
def test_a_container_cannot_pass_as_another_by_a_link_to_the_hosts_files(tmp_path: Path, link: str) -> None:
    """The agent would end or lock the other container for it."""
    folders = {key: tmp_path / "slices" / key[1] for key in BOTH}
    for folder in folders.values():
        folder.mkdir(parents=True)
        (folder / "counters").touch()
    (tmp_path / "kerf").symlink_to(folders[SECOND])
    targets = {
        "run/kerf": folders[SECOND],
        "run/kerf/counters": folders[SECOND] / "counters",
        "run": tmp_path,
    }
    root = tmp_path / "proc" / "7" / "root"
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(targets[link])
    assert (root / "run" / "kerf" / "counters").stat(), "a path that is simply followed finds it"
    assert container_of(7, control_blocks_of(folders), tmp_path / "proc") is None


def test_a_link_inside_the_container_is_followed_there(tmp_path: Path) -> None:
    """In many images one of /run and /var/run is a link to the other, absolute or not."""
    folders = {SECOND: tmp_path / "slices"}
    folders[SECOND].mkdir()
    (folders[SECOND] / "counters").touch()
    root = tmp_path / "proc" / "7" / "root"
    (root / "var" / "run" / "kerf").mkdir(parents=True)
    (root / "run").symlink_to("/var/run")
    os.link(folders[SECOND] / "counters", root / "var" / "run" / "kerf" / "counters")
    assert container_of(7, control_blocks_of(folders), tmp_path / "proc") == SECOND
