"""Labels of SELinux: extended attributes, which root can write without SELinux too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.node_agent.strategies import selinux
from services.node_agent.strategies.control_block import ControlBlock
from services.node_agent.strategies.install import install

ATTRIBUTE = "security.selinux"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    try:
        os.setxattr(tmp_path, ATTRIBUTE, b"system_u:object_r:tmp_t:s0\0")
    except OSError as error:
        pytest.skip(f"needs root, and a file system with extended attributes: {error}")
    return tmp_path / "a"


@pytest.fixture
def enabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "filesystems").write_text("nodev\tsysfs\nnodev\tselinuxfs\n\text4\n")
    monkeypatch.setattr(selinux, "_FILESYSTEMS", tmp_path / "filesystems")


def test_containers_may_use_the_files_of_a_control_block(folder: Path, enabled: None) -> None:
    made = ControlBlock(folder, lambda: 0)
    for name in ("orders", "counters", "signal", "peers"):
        assert os.getxattr(folder / name, ATTRIBUTE) == b"system_u:object_r:container_file_t:s0\0"
    made.close()


def test_containers_may_use_the_library(folder: Path, enabled: None) -> None:
    folder.mkdir()
    (folder / "libkerf.so").touch()
    library = install(folder, folder / "host", "digest")
    for path in (library, library.with_name("ld.so.preload")):
        assert os.getxattr(path, ATTRIBUTE) == b"system_u:object_r:container_file_t:s0\0"


def test_files_of_an_earlier_version_are_labelled_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ControlBlock(folder, lambda: 0).close()
    assert ATTRIBUTE not in os.listxattr(folder / "counters"), "without SELinux"
    monkeypatch.setattr(selinux, "is_enabled", lambda: True)
    ControlBlock(folder, lambda: 0).close()
    assert os.getxattr(folder / "counters", ATTRIBUTE) == selinux.LABEL.encode() + b"\0"


def test_a_kernel_without_selinux_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "filesystems").write_text("nodev\tsysfs\n\text4\n")
    monkeypatch.setattr(selinux, "_FILESYSTEMS", tmp_path / "filesystems")
    assert not selinux.is_enabled()


def test_a_refused_label_is_logged_and_the_control_block_is_made(
    folder: Path, enabled: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "setxattr", refuse)
    ControlBlock(folder, lambda: 0).close()
    assert "not_labelled" in capsys.readouterr().out
