"""Keeps the logs short that programs of the agent write for as long as they run."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

LOG_BYTES, LOG_KEPT_BYTES = 1 << 20, 1 << 16
"""A log that is longer is cut to its end."""
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def shorten(log: Path) -> None:
    """Cuts a log that is too long. Raises OSError, also where it is a symbolic link.

    What counts is what it takes on the disk: a program that does not write at the file's end, wherever that is, goes on
    where it was, behind a hole.
    """
    try:
        opened = os.open(log, _FLAGS)
    except FileNotFoundError:
        return  # its program has ended meanwhile
    with os.fdopen(opened, "r+b") as file:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or min(found.st_size, found.st_blocks * 512) <= LOG_BYTES:
            return
        file.seek(found.st_size - LOG_KEPT_BYTES)
        kept = file.read().partition(b"\n")[2]
        file.seek(0)
        file.write(kept)
        file.truncate()


def shorten_all(folder: Path) -> None:
    """Cuts the logs in a folder that are too long. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for log in [Path(entry) for entry in entries if entry.is_file(follow_symlinks=False)]:
            shorten(log)
