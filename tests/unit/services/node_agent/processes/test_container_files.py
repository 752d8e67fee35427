"""Paths in a container's root directory, resolved there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.node_agent.processes.container_files import file_in


def identity(path: Path) -> tuple[int, int]:
    return path.stat().st_dev, path.stat().st_ino


def test_a_file_is_found_by_its_absolute_path_in_the_container(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert file_in(tmp_path, "/a") == file_in(tmp_path, "a") == identity(tmp_path / "a")
    assert file_in(tmp_path, "/b") is None
    assert file_in(tmp_path / "b", "/a") is None


@pytest.mark.parametrize("target", ["/outside", "../outside", "../../../../outside", "/proc/self/root{0}/outside"])
def test_no_link_leads_out_of_the_container(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").touch()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(target.format(tmp_path))
    assert file_in(tmp_path / "root", "/link") is None


def test_the_links_of_proc_are_not_followed() -> None:
    """/proc/self/root in a container that has /proc mounted leads to the agent's own root."""
    assert file_in(Path("/"), "/proc/self/root/etc") is None
    assert file_in(Path("/"), "/etc") == identity(Path("/etc"))


def test_the_file_itself_is_not_opened(tmp_path: Path) -> None:
    """Opening a FIFO waits for a writer."""
    os.mkfifo(tmp_path / "fifo")
    assert file_in(tmp_path, "/fifo") == identity(tmp_path / "fifo")
