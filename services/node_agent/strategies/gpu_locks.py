"""The driver's process locks with one worker for each GPU.

A lock waits for the process's work in flight, so a kernel that spins keeps its worker for the whole time limit. The
processes of another GPU have another worker and are locked and unlocked meanwhile.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.node_agent.strategies.locks import Library, LockError, Locks

_JOURNALS = "locks*.json"
"""`locks.json` is that of the single worker of former versions."""


class GpuLocks:
    def __init__(self, library: Library, folder: Path) -> None:
        """`folder` holds the journals; a reboot must empty it."""
        self._library, self._folder = library, folder
        self._of: dict[str, Locks] = {}

    @property
    def held(self) -> frozenset[int]:
        """The processes that are locked on any GPU."""
        return frozenset(pid for locks in self._of.values() for pid in locks.held)

    @property
    def gpus(self) -> frozenset[str]:
        """The GPUs that have locks."""
        return frozenset(self._of)

    def of(self, uuid: str) -> Locks:
        """Returns the locks of one GPU. Their worker starts with the first lock."""
        if uuid not in self._of:
            self._of[uuid] = Locks(self._library, self._folder / f"locks-{uuid}.json")
        return self._of[uuid]

    def has_leftovers(self) -> bool:
        """Whether an earlier agent may have left a process locked."""
        return any(Locks(self._library, path).has_leftovers() for path in self._folder.glob(_JOURNALS))

    async def start(self) -> None:
        """Undoes the locks that an earlier agent left. Raises LockError if this driver has no process locks."""
        errors = []
        for path in sorted({self._folder / "locks.json", *self._folder.glob(_JOURNALS)}):
            locks = Locks(self._library, path)
            try:
                await locks.start()
            except LockError as error:
                errors.append(error)
            await locks.close()
        if errors:
            raise errors[0]

    async def close(self) -> None:
        """Unlocks all processes, unless the driver hangs, and refuses further locks."""
        await asyncio.gather(*(locks.close() for locks in self._of.values()))
