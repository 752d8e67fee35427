"""Tells a container's program to sleep or to wake up, and waits until it has. `hooks.py` runs it as a program.

    python hook_call.py http PID STARTED TIMEOUT_S PORT PATH
    python hook_call.py signal PID STARTED TIMEOUT_S SIGNAL FILE there|gone

`http` enters the network namespace of the process, POSTs to 127.0.0.1, and prints the status. It sends no body and no
credentials, follows no redirect and reads no body. `signal` sends the signal unless the file is as it shall be, waits
until it is, and prints `there` or `gone`; `late` if it is not in time. Otherwise it prints why not.

The container belongs to a user. So the process is the one that started at STARTED or none (PIDs are used again), the
file is looked for inside the container's root whatever its links say, and what hangs hangs here, where it can be
killed. It imports nothing of Kerf.
"""

from __future__ import annotations

import ctypes
import errno
import http.client
import os
import signal
import sys
import time
from pathlib import Path

CLONE_NEWNET = 0x40000000
OPENAT2, NO_MAGICLINKS, IN_ROOT = 437, 0x02, 0x10
"""The system call's number on all machines, and RESOLVE_NO_MAGICLINKS and RESOLVE_IN_ROOT of linux/openat2.h."""
LOOK_S = 0.1
MOST_SAID = 200

libc = ctypes.CDLL(None, use_errno=True)


class OpenHow(ctypes.Structure):
    """open_how of linux/openat2.h."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def opened(pid: str, since: str, path: str) -> int:
    """Opens a file of /proc/PID. Raises OSError if the process is gone, even if another one has its PID."""
    file = os.open(f"/proc/{pid}/{path}", os.O_RDONLY | os.O_CLOEXEC)
    still_there(pid, since)
    return file


def still_there(pid: str, since: str) -> None:
    started = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]
    if started != since.encode():
        raise ProcessLookupError(errno.ESRCH, f"process {pid} has ended")


def enter(pid: str, since: str) -> None:
    """Enters the network namespace of a process. Raises OSError, as when CAP_SYS_ADMIN is missing."""
    file = opened(pid, since, "ns/net")
    if os.fstat(file).st_ino != Path("/proc/self/ns/net").stat().st_ino and libc.setns(file, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"the agent cannot enter the pod's network: {os.strerror(number)}")
    os.close(file)


def is_there(root: int, path: str) -> bool | None:
    """Whether there is such a file in a container, of any kind; None: it changes just now. Raises OSError."""
    how = OpenHow(os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, IN_ROOT | NO_MAGICLINKS)
    file = libc.syscall(OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how)))
    if file >= 0:
        os.close(file)
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOENT, errno.ENOTDIR):
        return False
    if number in (errno.EAGAIN, errno.EINTR):
        return None
    raise OSError(number, os.strerror(number))


def post(pid: str, since: str, timeout_s: str, port: str, path: str) -> str:
    enter(pid, since)
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=float(timeout_s))
    connection.request("POST", path, headers={"Content-Length": "0"})
    return str(connection.getresponse().status)


def send(pid: str, since: str, timeout_s: str, *words: str) -> str:
    name, path, wanted = words
    until = time.monotonic() + float(timeout_s)
    root = opened(pid, since, "root")
    process = os.pidfd_open(int(pid))
    still_there(pid, since)
    if is_there(root, path) is (wanted == "there"):
        return wanted
    signal.pidfd_send_signal(process, signal.Signals[name])
    while is_there(root, path) is not (wanted == "there"):
        if time.monotonic() >= until:
            return "late"
        time.sleep(LOOK_S)
    return wanted


def main(how: str, *words: str) -> None:
    try:
        said = post(*words) if how == "http" else send(*words)
    except (OSError, http.client.HTTPException) as error:
        said = f"no answer: {error}"
    print(ascii(said)[1:-1][:MOST_SAID])  # noqa: T201 - to the agent


if __name__ == "__main__":
    main(*sys.argv[1:])
