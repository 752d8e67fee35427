"""A filesystem of its own, for what happens when a disk is full. Mounting needs root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_TRIES = 50


class OwnDisk:
    """In memory, and no larger there than what is on it. Use it as a context manager; its files are gone afterwards."""

    def __init__(self, path: Path, *, mib: int) -> None:
        self.path, self._bytes = path, mib * 1024**2

    def __enter__(self) -> OwnDisk:
        self.path.mkdir(parents=True, exist_ok=True)
        self._mount(f"size={self._bytes}")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def fill(self) -> None:
        """From now on it is as large as what is on it: not one block is left."""
        for left in reversed(range(_TRIES)):
            disk = os.statvfs(self.path)
            try:
                self._mount(f"remount,size={(disk.f_blocks - disk.f_bfree) * disk.f_frsize}")
                return
            except subprocess.CalledProcessError:  # something was written between the look and the mount
                if not left:
                    raise

    def make_room(self) -> None:
        """It is as large as it was at first."""
        self._mount(f"remount,size={self._bytes}")

    def _mount(self, options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "kerf-test", str(self.path)], check=True)
