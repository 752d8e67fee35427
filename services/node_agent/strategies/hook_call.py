"""Calls a server of a container, from inside the container's network. `hooks.py` runs it as a program.

    python hook_call.py PID PORT PATH TIMEOUT_S

It enters the network namespace of the process, POSTs to 127.0.0.1, and prints the status, or why there is none. It
sends no body and no credentials. It imports nothing of Kerf.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000


def enter(pid: str) -> None:
    """Enters the network namespace of a process. Raises OSError, as when CAP_SYS_ADMIN is missing."""
    theirs = Path(f"/proc/{pid}/ns/net")
    if theirs.stat().st_ino == Path("/proc/self/ns/net").stat().st_ino:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(file, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"the agent cannot enter the pod's network: {os.strerror(number)}")
    os.close(file)


def main(pid: str, port: str, path: str, timeout_s: str) -> None:
    try:
        enter(pid)
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=float(timeout_s))
        connection.request("POST", path, headers={"Content-Length": "0"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        print(f"no answer: {error}")  # noqa: T201 - to the agent
    else:
        print(status)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:5])
