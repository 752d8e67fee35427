"""A process that holds a lease on a file, as any process can on a file that it owns."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_HOLD = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print("taken", flush=True)
except BlockingIOError:
    print("refused", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def lease(path: Path) -> Iterator[bool]:
    """Takes a lease on the file and holds it, also when the kernel asks for it. Gives whether the lease was granted."""
    command = [sys.executable, "-c", _HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline() == "taken\n"
        finally:
            process.kill()


def is_leased(path: Path) -> bool:
    """Whether a process still holds its lease. The kernel ends or weakens one for which another has waited its time."""
    inode = path.stat().st_ino
    mine = [line for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line and " LEASE " in line]
    return any("BREAKING" in line or "WRITE" in line for line in mine)
