"""Ends all processes of a pod with SIGKILL, and never another process.

A PID may be reused at any time. So each process gets a descriptor first (pidfd_open), and is identified after that: by
its start time, as it was when the pod's processes were listed, and by its cgroup, which names its pod. As long as the
descriptor's process lives, its PID is its own, so what /proc says of the PID is about it; if it has ended meanwhile,
the signal reaches nothing.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from services.node_agent.processes.owner import Owner, owner_of
from services.node_agent.processes.stat import fields

MAX_ROUNDS = 100
"""A process that starts during one round is found in the next."""
ROUND_S = 0.1


def started(pid: int) -> int:
    """Returns when a process started, in clock ticks since boot; 0 if it is gone. (`lock_worker.py` has a copy, because
    it imports nothing of Kerf.)"""
    try:
        return int(fields(Path(f"/proc/{pid}"))[19])
    except (OSError, ValueError, IndexError):
        return 0


def kill(pid: int, begun: int, pod_uid: str, owner: Callable[[int], Owner | None] = owner_of) -> bool:
    """Sends SIGKILL if the process still is the one that started at `begun`, and belongs to the pod.

    Returns whether it was alive and has got the signal. Raises OSError if the agent may not signal it.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        of = owner(pid)
        if not begun or started(pid) != begun or of is None or of.pod_uid != pod_uid:
            return False
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        if ended.poll(0):
            return False  # its parent has not asked for its status yet
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


class PodKiller:
    def __init__(
        self, processes_of: Callable[[str], Iterable[int]], owner: Callable[[int], Owner | None] = owner_of
    ) -> None:
        """`processes_of` returns the PIDs of a pod. `owner` returns the pod of a process."""
        self._processes_of, self._owner = processes_of, owner

    async def kill(self, pod_uid: str, signalled: Callable[[], None] = lambda: None) -> tuple[frozenset[int], bool]:
        """Kills the pod's processes, again and again until none is left.

        `signalled` is called once, when all that were there have the signal. Returns those that got it, and whether
        none is left: one may hang in the driver for a while. Raises OSError.
        """
        killed: set[int] = set()
        for number in range(MAX_ROUNDS):
            listed = {pid: started(pid) for pid in self._processes_of(pod_uid)}
            alive = {pid for pid, begun in listed.items() if kill(pid, begun, pod_uid, self._owner)}
            if number == 0:
                signalled()
            if not alive:
                return frozenset(killed), True
            killed |= alive
            await asyncio.sleep(ROUND_S)
        return frozenset(killed), False
