"""Looks at files in a container's root directory as the container's processes see it.

`/proc/PID/root` leads into the container, and what is below it is the container's: it may be a symbolic link, and an
absolute one would lead the agent to a file of the host. So each path below is resolved by the kernel with the
container's root as its root, and without the links of /proc (openat2, Linux 5.6 and later).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

File = tuple[int, int]
"""Device and inode: they identify a file however it is mounted."""

_OPENAT2 = 437
"""The number of the system call, the same on all architectures."""
_NO_MAGICLINKS, _IN_ROOT = 0x02, 0x10
_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    """struct open_how of linux/openat2.h."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def file_in(root: Path, path: str) -> File | None:
    """Returns the identity of the file at `path` below `root`, or None if there is none or it is not accessible.

    The file itself is not opened (O_PATH), so neither a lease nor a device delays the call. It may wait for a file
    system that does not answer.
    """
    try:
        folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        how = _How(flags=os.O_PATH | os.O_CLOEXEC, resolve=_IN_ROOT | _NO_MAGICLINKS)
        file = _libc.syscall(_OPENAT2, folder, path.lstrip("/").encode(), ctypes.byref(how), ctypes.sizeof(how))
        if file < 0:
            return None
        try:
            found = os.fstat(file)
        finally:
            os.close(file)
    finally:
        os.close(folder)
    return found.st_dev, found.st_ino
