"""Moves a pod's GPU memory to the host and back, with the driver's checkpoint of each process (r570 and later).

The pod's cgroup gives its processes. The driver says which of them use a GPU, because NVML does not list a checkpointed
process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.strategies import host_memory
from services.node_agent.strategies.host_memory import HostMemoryUnknown
from services.node_agent.strategies.lock_worker import CHECKPOINTED, LOCKED, RUNNING
from services.node_agent.strategies.locks import LockError, Locks

MAX_ROUNDS = 3
"""Maximum rounds of checkpoints. A process that starts during one round is found in the next."""


class PartialCheckpoint(Exception):
    """A part of the pod is checkpointed and could not be restored. The text says why the checkpoint failed."""


class Checkpointer:
    def __init__(
        self, locks: Locks, cgroups: PodCgroups, meminfo: Callable[[], Path] = lambda: Path("/proc/meminfo")
    ) -> None:
        self.locks, self._cgroups, self._meminfo = locks, cgroups, meminfo

    async def checkpoint(self, uid: str, bytes_of: tuple[int, ...]) -> str:
        """Moves all GPU memory of the pod to the host. Returns an empty string, or why it failed; then nothing has
        moved.

        `bytes_of` holds the bytes that each of its containers has on GPUs. Raises PartialCheckpoint.
        """
        try:
            found = await self._on_gpus(uid, RUNNING, LOCKED)
            pod = self._cgroups.path(uid)
            if found and pod is not None:
                # It is unknown here which container a cgroup belongs to, so each may be the largest.
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
            why = "the pod keeps starting processes on GPUs"
        except (LockError, HostMemoryUnknown) as error:
            why = str(error)
        if await self.restore(uid):
            raise PartialCheckpoint(why)
        return why

    async def restore(self, uid: str) -> str:
        """Moves the pod's memory back to its GPUs. Returns an empty string, or why some of it is still on the host."""
        try:
            for group in (await self._on_gpus(uid, CHECKPOINTED)).values():
                for pid in group:
                    await self.locks.restore(pid)
        except (LockError, HostMemoryUnknown) as error:
            return str(error)
        return ""

    async def is_on_host(self, uid: str) -> bool:
        """Whether a process of the pod is checkpointed. Raises LockError or HostMemoryUnknown if that is unknown."""
        return bool(await self._on_gpus(uid, CHECKPOINTED))

    async def _on_gpus(self, uid: str, *states: int) -> dict[Path, tuple[int, ...]]:
        """Returns the pod's processes in one of these states, by cgroup. A pod without a cgroup has none."""
        pod = self._cgroups.path(uid)
        if pod is None:
            return {}
        found = {}
        for folder, pids in host_memory.processes(pod).items():
            of_driver = tuple([pid for pid in pids if await self.locks.state(pid) in states])
            if of_driver:
                found[folder] = of_driver
        return found
