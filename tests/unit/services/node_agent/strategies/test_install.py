"""The interposer's files on the host: right, or replaced as a whole, or no slice starts with them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.node_agent.strategies.install import Installation, install
from shared.service import Health

LIST = "/run/kerf/libkerf.so\n"


@pytest.fixture
def build(tmp_path: Path) -> Path:
    made = tmp_path / "build"
    made.mkdir()
    (made / "libkerf.so").write_bytes(b"the library")
    return made


class Context:
    """What an installation uses of a service's context."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.log: Any = SimpleNamespace(
            info=lambda event, **_: self.said.append(event), error=lambda event, **_: self.said.append(event)
        )
        self.health = Health()


def test_the_library_and_its_list_are_installed_for_all_users(build: Path, tmp_path: Path) -> None:
    library = install(build, tmp_path / "host", "digest")
    preload = library.with_name("ld.so.preload")
    assert (library.read_bytes(), preload.read_text()) == (b"the library", LIST)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (library, preload)] == [0o755, 0o644]


@pytest.mark.parametrize("name", ["libkerf.so", "ld.so.preload"])
@pytest.mark.parametrize("left", [b"", b"the libr"], ids=["empty", "cut off"])
def test_what_a_power_loss_has_left_is_replaced(build: Path, tmp_path: Path, name: str, left: bytes) -> None:
    """A file that was renamed before its content was on the disk has its name, and not its content."""
    library = install(build, tmp_path / "host", "digest")
    library.with_name(name).write_bytes(left)
    install(build, tmp_path / "host", "digest")
    assert (library.read_bytes(), library.with_name("ld.so.preload").read_text()) == (b"the library", LIST)


def test_files_are_on_the_disk_before_they_have_their_names(
    build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        found = os.fstat(descriptor)
        done.append("folder" if stat.S_ISDIR(found.st_mode) else f"{found.st_size} bytes")
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        done.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    install(build, tmp_path / "host", "digest")
    size = f"{len(LIST)} bytes"
    assert done == ["11 bytes", "libkerf.so", "folder", size, "ld.so.preload", "folder"]


def test_what_is_right_is_not_touched(build: Path, tmp_path: Path) -> None:
    """Running containers have these very files mounted."""
    library = install(build, tmp_path / "host", "digest")
    files = (library, library.with_name("ld.so.preload"))
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files]
    install(build, tmp_path / "host", "digest")
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files] == before


def test_a_file_that_is_replaced_stays_as_it_was_for_containers_that_have_it_mounted(
    build: Path, tmp_path: Path
) -> None:
    """An open file stands in for their bind mount: both are of the file, and not of its name."""
    preload = install(build, tmp_path / "host", "digest").with_name("ld.so.preload")
    preload.write_text("/run/kerf/of-a-former-version.so\n")
    with preload.open() as mounted:
        install(build, tmp_path / "host", "digest")
        assert mounted.read() == "/run/kerf/of-a-former-version.so\n"
    assert preload.read_text() == LIST


def test_a_write_that_fails_leaves_what_there_was(build: Path, tmp_path: Path) -> None:
    preload = install(build, tmp_path / "host", "digest").with_name("ld.so.preload")
    preload.write_text("/run/kerf/of-a-former-version.so\n")
    preload.with_name("ld.so.preload.new").mkdir()
    with pytest.raises(OSError, match=r"ld\.so\.preload\.new"):
        install(build, tmp_path / "host", "digest")
    assert preload.read_text() == "/run/kerf/of-a-former-version.so\n"


async def test_an_installation_that_has_failed_is_named_and_tried_again(build: Path, tmp_path: Path) -> None:
    context = Context()
    made = Installation(context, build, tmp_path / "host", "digest")  # type: ignore[arg-type]
    assert made.problem == "it is not installed yet"
    obstacle = tmp_path / "host" / "digest" / "ld.so.preload.new"
    obstacle.mkdir(parents=True)
    for _ in range(2):
        await made.install()
        assert "ld.so.preload.new" in made.problem
        assert "slices that need the interposer do not start" in str(context.health.report()["parts"]["library"])
    assert context.said == ["interposer_not_installed"], "once, until it has another reason"
    obstacle.rmdir()
    await made.install()
    assert (made.problem, "library" in context.health.report()["parts"]) == ("", False)
    assert made.library.read_bytes() == b"the library"


async def test_an_image_without_a_library_has_nothing_to_install(tmp_path: Path) -> None:
    context = Context()
    made = Installation(context, tmp_path, tmp_path / "host", "")  # type: ignore[arg-type]
    await made.install()
    assert made.problem == f"there is no libkerf.so in {tmp_path}"
    assert (context.said, (tmp_path / "host").exists()) == ([], False)
