"""A pod's GPU memory to the host and back, by the driver's checkpoint of each of its processes (r570 and later).

Who is there is the pod's cgroup, and who is on a GPU the driver's word: a checkpointed process has left NVML's lists.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.node_agent.release.cgroups import PodCgroups
from services.node_agent.strategies import host_memory
from services.node_agent.strategies.host_memory import HostMemoryUnknown
from services.node_agent.strategies.lock_worker import CHECKPOINTED, LOCKED, RUNNING
from services.node_agent.strategies.locks import LockError, Locks

MAX_ROUNDS = 3
"""A process that comes while others are on their way is seen at the next look."""


class PartialCheckpoint(Exception):
    """Some of it is on the host, and could not be brought back. The text says why it was to come back."""


class Checkpointer:
    def __init__(
        self, locks: Locks, cgroups: PodCgroups, meminfo: Callable[[], Path] = lambda: Path("/proc/meminfo")
    ) -> None:
        self.locks, self._cgroups, self._meminfo = locks, cgroups, meminfo

    async def checkpoint(self, uid: str, bytes_of: tuple[int, ...]) -> str:
        """Empty: all that the pod had on GPUs is on the host. Else why not, and all is where it was. `bytes_of`: what each of its
        containers has on GPUs. Raises Torn."""
        try:
            found = await self._on_gpus(uid, RUNNING, LOCKED)
            pod = self._cgroups.path(uid)
            if found and pod is not None:
                # Which container a cgroup is nobody says here: each may be the largest.
                most = sum(bytes_of) if len(found) == 1 else max(bytes_of, default=0)
                why = host_memory.refusal(pod, dict.fromkeys(found, most), sum(bytes_of), self._meminfo())
                if why:
                    return why
            for _ in range(MAX_ROUNDS):
                pids = [pid for group in found.values() for pid in group]
                if not pids:
                    return ""
                for pid in pids:
                    await self.locks.checkpoint(pid)
                found = await self._on_gpus(uid, RUNNING, LOCKED)
            why = "it goes on starting processes on GPUs"
        except (LockError, HostMemoryUnknown) as error:
            why = str(error)
        if await self.restore(uid):
            raise PartialCheckpoint(why)
        return why

    async def restore(self, uid: str) -> str:
        """Empty: all that was on the host is on the GPUs again. Else why some of it is not."""
        try:
            for group in (await self._on_gpus(uid, CHECKPOINTED)).values():
                for pid in group:
                    await self.locks.restore(pid)
        except (LockError, HostMemoryUnknown) as error:
            return str(error)
        return ""

    async def _on_gpus(self, uid: str, *states: int) -> dict[Path, tuple[int, ...]]:
        """The pod's processes in one of these states, by cgroup; without a cgroup it has none."""
        pod = self._cgroups.path(uid)
        if pod is None:
            return {}
        found = {}
        for folder, pids in host_memory.processes(pod).items():
            of_driver = tuple([pid for pid in pids if await self.locks.state(pid) in states])
            if of_driver:
                found[folder] = of_driver
        return found
