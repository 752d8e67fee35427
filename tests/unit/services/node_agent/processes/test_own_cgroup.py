"""Processes of the agent's own that outlive it."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.processes.own_cgroup import OwnCgroup


@pytest.mark.parametrize("folders", [(".",), ("memory", "pids")])
def test_a_process_is_taken_in_every_hierarchy(tmp_path: Path, folders: tuple[str, ...]) -> None:
    """Version 2 has one hierarchy, version 1 a folder for each."""
    for folder in folders:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "cgroup.procs").touch()
    assert OwnCgroup(tmp_path, "own").take(4711)
    assert {(tmp_path / folder / "own" / "cgroup.procs").read_text() for folder in folders} == {"4711"}


def test_a_process_that_no_hierarchy_takes_is_told(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "own").touch()
    assert not OwnCgroup(tmp_path, "own").take(4711)
