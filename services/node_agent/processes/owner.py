"""Finds the pod and container of a process by its cgroup."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from services.node_agent.processes.stat import fields

_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")
"""A pod's UID; systemd writes its dashes as underscores. A static pod's UID has 32 digits."""
_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")


class Owner(msgspec.Struct, frozen=True):
    """The pod and container of a process. Both are "" for a process of the host. `container` is the runtime's id."""

    pod_uid: str = ""
    container: str = ""


def owner_in(text: str) -> Owner:
    """Parses /proc/PID/cgroup: cgroup v1 or v2, systemd's slices or the cgroupfs driver's directories."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        if pod := _POD.search(path):
            container = _CONTAINER.search(path, pod.end())
            return Owner(pod[1].replace("_", "-"), container[1] if container else "")
    return Owner()


def owner_of(pid: int, proc: Path = Path("/proc")) -> Owner | None:
    """The owner of a process. None if it has ended, or if the agent cannot see the host's processes.

    With cgroup v1 the kernel shows a thread that has ended in the root cgroup. A process whose first thread has ended
    goes on in its other threads, so then these tell.
    """
    folder = proc / str(pid)
    try:
        found = _owner_in(folder)
        if found.pod_uid or fields(folder)[:1] != [b"Z"]:
            return found
        threads = sorted((folder / "task").iterdir())
    except OSError:
        return None
    return next((of for thread in threads if (of := _owner_of_thread(thread)).pod_uid), found)


def _owner_in(folder: Path) -> Owner:
    """Raises OSError. A container that may create cgroups may give them any bytes as names."""
    return owner_in((folder / "cgroup").read_text(errors="replace"))


def _owner_of_thread(thread: Path) -> Owner:
    try:
        return _owner_in(thread)
    except OSError:
        return Owner()  # it has ended meanwhile
