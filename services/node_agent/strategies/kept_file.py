"""A file that a container can open, and that the agent keeps open.

A process can take a lease on a file that it owns (fcntl F_SETLEASE). As long as it holds the lease, open() and
truncate() in other processes wait, up to /proc/sys/fs/lease-break-time: 45 s. A descriptor that is open already is not
affected: pread, fstat and ftruncate on it never wait for a lease. And while a file is open for writing elsewhere, the
kernel grants no lease on it. So the agent opens each file once and keeps the descriptor.

What may take long, a lease that an earlier agent's end made possible, and giving back the memory of a file that a
container has extended, happens in a thread of its own: at most one for each file.
"""

from __future__ import annotations

import os
import resource
import threading
import weakref
from pathlib import Path

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW

MAX_DESCRIPTORS = 65_536


def allow_descriptors() -> None:
    """Raises this process's limit of open files, where its hard limit allows it: three are kept for each slice, and a
    container runtime may start the agent with a limit of 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class KeptFile:
    def __init__(self, path: Path) -> None:
        """Never waits for a lease. Raises OSError if the file cannot be opened for another reason."""
        self.path = path
        self._guard = threading.Lock()
        self._file: int | None = None
        self._problem = ""
        self._closed = False
        self._truncation: threading.Thread | None = None
        self._finalizer: weakref.finalize[[int], KeptFile] | None = None
        try:
            self._keep(os.open(path, _FLAGS | os.O_NONBLOCK))
        except BlockingIOError:
            # A waiting open() counts as a writer, so nothing can take another lease, and it succeeds when this one is
            # given up or has timed out. Repeated attempts with O_NONBLOCK could fail for ever.
            self._problem = f"one of its processes holds a lease on its {path.name}"
            threading.Thread(target=self._wait, name="leased-file", daemon=True).start()

    @property
    def descriptor(self) -> int | None:
        """The open file, or None; then `problem` says why."""
        return self._file

    @property
    def problem(self) -> str:
        """Why there is no descriptor: a process holds a lease on the file, or it could not be opened after that."""
        return self._problem

    def set_length(self, size: int) -> None:
        """Begins to truncate or extend the file to `size` bytes, unless that is under way already."""
        file = self._file
        if file is None or (self._truncation is not None and self._truncation.is_alive()):
            return
        # A descriptor of its own: the file may be closed, and the number reused, before the call returns.
        self._truncation = threading.Thread(
            target=_truncate, args=(os.dup(file), size), name="file-length", daemon=True
        )
        self._truncation.start()

    def close(self) -> None:
        with self._guard:
            self._closed, self._file = True, None
            if self._finalizer is not None:
                self._finalizer()

    def _wait(self) -> None:
        try:
            file = os.open(self.path, _FLAGS)
        except OSError as error:
            self._problem = f"its {self.path.name} cannot be opened: {error.strerror}"
            return
        with self._guard:
            if self._closed:
                os.close(file)
            else:
                self._keep(file)

    def _keep(self, file: int) -> None:
        self._file, self._problem, self._finalizer = file, "", weakref.finalize(self, os.close, file)


def _truncate(file: int, size: int) -> None:
    try:
        os.ftruncate(file, size)
    finally:
        os.close(file)
