"""One agent works on a node at a time. During an update the next one starts beside it, and takes over when it ends."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

POLL_S = 0.1
LOCK = "agent.lock"
"""The file's name, beside the checkpoint."""


class NodeLock:
    """A lock on a file beside the checkpoint. The kernel gives it back when its process ends, in whatever way."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def take(self) -> bool:
        """Whether this process has the lock now. Raises OSError where the file cannot be opened."""
        if self._descriptor < 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    async def wait(self) -> None:
        """Waits until this process has the lock."""
        while not self.take():  # noqa: ASYNC110 - the kernel does not say when a lock is free
            await asyncio.sleep(POLL_S)

    def give_back(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1
