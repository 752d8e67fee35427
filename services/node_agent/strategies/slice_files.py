"""The file system of the control blocks: a tmpfs with room for the files that are in it, and for nothing else.

Containers can extend their counters and their signal. In a file system of the host, such as /run, they could fill it,
and neither the next slice nor systemd could write there. A tmpfs of their own has the exact size of its files, which
are written in full when they are created. It gets more room for the moment in which the agent creates files.

Control blocks share one file system because peers' signals are hard links, which do not cross file systems.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import structlog

T = TypeVar("T")

ROOM_BYTES = 64 << 20
"""The room while the agent creates files. A container that writes all the time takes a part of it, which the agent
takes back with the next sample."""
ROOM_WITHOUT_LIMIT_BYTES = 1 << 30
"""The room in a file system that is mounted although it shall not be: an earlier agent has mounted it, and containers
use its files. At most a quarter of the node's memory."""
TRIES = 5
"""Each has twice the room of the one before."""
SOURCE = "kerf-slices"
"""The name of the file system in the list of mounts."""
_NOSUID, _NODEV, _NOEXEC, _REMOUNT = 2, 4, 8, 32
_libc = ctypes.CDLL(None, use_errno=True)

log = structlog.get_logger("slice_files")


class SliceFiles:
    """The folder of the control blocks. If it is not mounted, it is a folder like any other."""

    def __init__(self, folder: Path, *, enabled: bool = False) -> None:
        """`enabled`: whether `mount` mounts the file system."""
        self.folder, self._enabled = folder, enabled
        self.is_limited = False

    def mount(self) -> None:
        """Mounts the file system, or finds the one that an earlier agent has mounted. Logs why it cannot.

        A folder with slices of a former version stays as it is: a mount would hide files that containers use. If
        mounting is off and an earlier agent has mounted it, it gets room for new slices.
        """
        try:
            is_mounted = self._is_mounted()
            if not self._enabled:
                if is_mounted:
                    self._lift()
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            if not is_mounted:
                if any(self.folder.iterdir()):
                    _log_unlimited(f"{self.folder} holds slices of a former version; restart the agent without slices")
                    return
                self._set(ROOM_BYTES, 0)
            self.is_limited = True
            self.fit()
        except OSError as error:
            _log_unlimited(f"{error.strerror}: the agent needs CAP_SYS_ADMIN")

    def make(self, create: Callable[[], T]) -> T:
        """Returns what `create` returns, which may create files here. Raises what it raises."""
        for again in range(TRIES):
            try:
                with self._room(ROOM_BYTES << again):
                    return create()
            except OSError as error:
                if error.errno != errno.ENOSPC or not self.is_limited or again == TRIES - 1:
                    raise
        raise AssertionError  # the last try returns or raises

    def fit(self) -> None:
        """Takes the room away that files which were removed or truncated have left. Logs why it cannot; the next call
        tries again."""
        try:
            if self.is_limited and os.statvfs(self.folder).f_bfree:
                self._resize(self._used_bytes())
        except OSError as error:
            log.warning("slices_keep_room", why=str(error), effect="containers can fill it until the agent succeeds")

    def leave(self) -> None:
        """Makes room for new slices, because the next agent may be of a version that knows no such file system. The
        next agent of this version takes it back. Logs why it cannot."""
        try:
            if self.is_limited:
                self._resize(self._used_bytes() + ROOM_BYTES)
        except OSError as error:
            log.warning("slices_without_room", why=str(error), effect="a former version cannot create slices")

    def _lift(self) -> None:
        """Makes room once for all slices that an agent without a limit creates."""
        found = os.statvfs(self.folder)
        room_bytes = min(ROOM_WITHOUT_LIMIT_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
        if found.f_bfree * found.f_frsize < room_bytes // 2:
            self._resize(self._used_bytes() + room_bytes)
        _log_unlimited(f"mount_slices is off, and {self.folder} stays mounted until the node reboots")

    def _used_bytes(self) -> int:
        found = os.statvfs(self.folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    @contextlib.contextmanager
    def _room(self, room_bytes: int) -> Iterator[None]:
        if not self.is_limited:
            yield
            return
        self._resize(self._used_bytes() + room_bytes)
        try:
            yield
        finally:
            self.fit()

    def _resize(self, size_bytes: int) -> None:
        """A file may grow between the look and the call; then it stays larger until the next call."""
        with contextlib.suppress(_SmallerThanItsFiles):
            self._set(max(size_bytes, os.sysconf("SC_PAGE_SIZE")), _REMOUNT)

    def _set(self, size_bytes: int, flags: int) -> None:
        options = f"size={size_bytes},mode=0755,huge=never"
        target = os.fsencode(self.folder)
        if _libc.mount(SOURCE.encode(), target, b"tmpfs", flags | _NOSUID | _NODEV | _NOEXEC, options.encode()):
            number = ctypes.get_errno()
            if flags & _REMOUNT and number == errno.EINVAL:
                raise _SmallerThanItsFiles
            raise OSError(number, f"mount of a tmpfs: {os.strerror(number)}", str(self.folder))

    def _is_mounted(self) -> bool:
        lines = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
        mine = os.path.realpath(self.folder).replace(" ", "\\040")
        return any(words[4] == mine and words[words.index("-") + 2] == SOURCE for words in lines)


class _SmallerThanItsFiles(Exception):
    pass


def _log_unlimited(why: str) -> None:
    log.warning("slices_not_limited", why=why, effect="containers can fill the file system of run_dir")
