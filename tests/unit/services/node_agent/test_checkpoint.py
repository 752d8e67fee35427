"""The checkpoint on disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from services.node_agent.checkpoint import CheckpointFile
from services.node_agent.state import CheckpointError
from tests.unit.services.node_agent.make import NODE, agent, grant, release, start


def test_a_saved_checkpoint_is_loaded_unchanged(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "deep" / "agent.json")
    assert file.load(NODE) is None
    for made in (agent(grant("a"), start("a")), agent(release("b"))):
        file.save(made.checkpoint())
        assert file.load(NODE) == made.checkpoint()


def test_a_damaged_checkpoint_raises_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    CheckpointFile(path).save(agent(grant("a")).checkpoint())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match="Drain this node's GPU pods, then move the file away"):
        CheckpointFile(path).load(NODE)


def test_an_interrupted_write_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    """A crash between the write and the rename."""
    path = tmp_path / "agent.json"
    saved = agent(grant("a")).checkpoint()
    CheckpointFile(path).save(saved)
    path.with_name("agent.json.new").write_bytes(b'{"version":1,"no')
    assert CheckpointFile(path).load(NODE) == saved


def test_the_file_is_synced_before_the_rename_and_the_directory_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a host that loses power comes back with an empty file, or with the old one."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        done.append(f"{kind} of {os.fstat(descriptor).st_size} bytes" if kind == "file" else kind)
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        done.append(f"rename to {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    path = tmp_path / "agent.json"
    CheckpointFile(path).save(agent(grant("a")).checkpoint())
    assert done == [f"file of {path.stat().st_size} bytes", "rename to agent.json", "folder"]


def test_a_failed_write_raises_and_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    """The caller must not promise what is not on disk. The old content still stands."""
    file = CheckpointFile(tmp_path / "agent.json")
    saved = agent(grant("a")).checkpoint()
    file.save(saved)
    (tmp_path / "agent.json.new").mkdir()
    with pytest.raises(OSError, match=r"agent\.json\.new"):
        file.save(agent().checkpoint())
    assert file.load(NODE) == saved
