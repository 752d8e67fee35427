"""The file system of the control blocks, mounted in this process's own mount namespace for a moment. Needs root."""

from __future__ import annotations

import errno
import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.node_agent.strategies.rules import Policy
from services.node_agent.strategies.slice_files import ROOM_BYTES, SliceFiles
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Part, Slice
from tests.support.waiting import eventually

UUID = "GPU-5a1c9a60-3f0e-4c53-8a53-3d1d0a8d7e11"
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "slices"
    subprocess.run(["umount", "-l", str(tmp_path / "slices")], check=False, capture_output=True)


@pytest.fixture
def files(folder: Path) -> SliceFiles:
    made = SliceFiles(folder, enabled=True)
    made.mount()
    if not made.is_limited:
        pytest.skip("needs the right to mount")
    return made


@pytest.fixture
def registry(files: SliceFiles) -> Iterator[SliceRegistry]:
    made = SliceRegistry(files.folder, Policy(), lambda: 7, files=files)
    yield made
    made.close()


def make(name: str, priority: int = 0) -> Slice:
    parts = (Part(uuid=UUID, memory_mib=64, compute_milli=0),)
    return Slice(uid=name, container="c", strategy="interposer", parts=parts, priority=priority)


def fill(path: Path) -> int:
    """Extends a file as far as it goes. Returns by how much."""
    before = path.stat().st_size
    with path.open("ab", buffering=0) as file:
        while writes(file):
            pass
    return path.stat().st_size - before


def writes(file: io.FileIO) -> bool:
    try:
        return bool(file.write(b"x" * (1 << 20)))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


@pytest.mark.parametrize("name", ["counters", "signal"])
async def test_a_container_cannot_extend_its_files(registry: SliceRegistry, name: str) -> None:
    registry.put(make("a"))
    assert fill(registry.folder(make("a").key) / name) < PAGE, "to the end of its last page at most"


async def test_a_container_that_tries_to_fill_the_file_system_does_not_prevent_the_next_slice(
    registry: SliceRegistry, files: SliceFiles
) -> None:
    """It takes what room there is while the agent creates files, and loses it with the next sample."""
    registry.put(make("a"))
    counters, blocks = registry.folder(make("a").key) / "counters", os.statvfs(files.folder).f_blocks

    def while_there_is_room() -> None:
        counters.open("ab").write(b"x" * (1 << 20))

    files.make(while_there_is_room)
    assert os.statvfs(files.folder).f_blocks > blocks
    registry.put(make("b", priority=5))
    assert fill(counters) == 0
    reading = registry.read(make("a").key)
    assert reading is not None
    assert "extended" in reading.damage

    def has_lost_it() -> bool:
        registry.heartbeat()
        return os.statvfs(files.folder).f_blocks == 2 * blocks

    await eventually(has_lost_it)
    assert fill(counters) < PAGE


def test_room_that_is_taken_at_once_is_doubled(files: SliceFiles) -> None:
    """A program that writes without end has filled the first room before the agent has created its file."""
    rooms = []

    def create() -> None:
        found = os.statvfs(files.folder)
        rooms.append(found.f_bfree * found.f_frsize)
        if len(rooms) < 3:
            raise OSError(errno.ENOSPC, "no space")

    files.make(create)
    assert [room >> 20 for room in rooms] == [64, 128, 256]
    with pytest.raises(OSError, match="read-only"):
        files.make(lambda: (_ for _ in ()).throw(OSError(errno.EROFS, "read-only")))


def test_the_room_of_a_removed_slice_is_taken_away(registry: SliceRegistry, files: SliceFiles) -> None:
    registry.put(make("a"))
    blocks = os.statvfs(files.folder).f_blocks
    registry.put(make("b"))
    registry.drop(make("b").key)
    assert (os.statvfs(files.folder).f_blocks, os.statvfs(files.folder).f_bfree) == (blocks, 0)


def test_the_next_agent_finds_the_file_system_and_its_files(registry: SliceRegistry, files: SliceFiles) -> None:
    registry.put(make("a"))
    again = SliceFiles(files.folder, enabled=True)
    again.mount()
    assert again.is_limited
    assert (registry.folder(make("a").key) / "orders").exists()
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    assert sum(str(files.folder) in line for line in mounts) == 1


def free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bfree * found.f_frsize


def test_an_agent_that_shall_not_mount_makes_room_in_what_an_earlier_one_has_mounted(
    registry: SliceRegistry, files: SliceFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    """mount_slices was switched off. The mount stays, because containers use its files, and it has no free page."""
    registry.put(make("a"))
    without = SliceFiles(files.folder)
    again = SliceRegistry(files.folder, Policy(), lambda: 7, files=without)
    assert again.adopt([make("a")]) == []
    again.put(make("b"))
    room = free(files.folder)
    assert (room > ROOM_BYTES, without.is_limited) == (True, False)
    assert "slices_not_limited" in capsys.readouterr().out
    SliceFiles(files.folder).mount()
    assert free(files.folder) == room, "once"
    again.close()


def test_an_agent_that_ends_leaves_room_for_a_former_version_and_the_next_one_takes_it_back(
    registry: SliceRegistry, files: SliceFiles
) -> None:
    registry.put(make("a"))
    assert free(files.folder) == 0
    registry.close()
    assert free(files.folder) == ROOM_BYTES
    SliceFiles(files.folder, enabled=True).mount()
    assert free(files.folder) == 0


def test_room_that_cannot_be_taken_back_is_logged_and_the_heartbeat_tries_again(
    registry: SliceRegistry, files: SliceFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "mount of a tmpfs: Cannot allocate memory")

    registry.put(make("a"))
    files.make(lambda: (files.folder / "more").write_bytes(b"x" * PAGE))
    (files.folder / "more").unlink()
    assert free(files.folder) == PAGE
    with monkeypatch.context() as patched:
        patched.setattr(files, "_set", refuse)
        registry.heartbeat()
    assert "slices_keep_room" in capsys.readouterr().out
    registry.heartbeat()
    assert free(files.folder) == 0


def test_slices_of_a_former_version_stay_where_they_are(folder: Path) -> None:
    (folder / "a-c").mkdir(parents=True)
    made = SliceFiles(folder, enabled=True)
    made.mount()
    assert (made.is_limited, (folder / "a-c").exists()) == (False, True)
    assert made.make(lambda: 5) == 5


def test_without_the_right_to_mount_it_is_a_folder_like_any_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "mount of a tmpfs: Operation not permitted")

    made = SliceFiles(folder, enabled=True)
    monkeypatch.setattr(made, "_set", refuse)
    made.mount()
    assert (made.is_limited, made.make(lambda: 5)) == (False, 5)
    assert "slices_not_limited" in capsys.readouterr().out


def test_an_agent_that_is_not_asked_to_mounts_nothing(folder: Path) -> None:
    made = SliceFiles(folder)
    made.mount()
    assert (made.is_limited, folder.exists()) == (False, False)
