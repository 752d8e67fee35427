"""The driver's process locks and copies, with several workers side by side.

A copy of GPU memory keeps its worker for seconds. The processes of a pod, and pods on other GPUs, are copied by other
workers meanwhile. Whoever has locked a process unlocks it, so each process belongs to one worker as long as it is
locked. A worker that hangs or is killed takes the locks of its own processes with it, and no others.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import structlog

from services.node_agent.moves import Step
from services.node_agent.strategies.locks import ANSWER_S, LOCK_MS, PATIENCE_MS, Library, LockError, Locks

WORKERS = 8
"""As many copies go on at once as a usual node has GPUs."""

log = structlog.get_logger("lock_pool")


class LockPool:
    def __init__(
        self,
        library: Library,
        journal: Path,
        workers: int = WORKERS,
        *,
        answer_s: float = ANSWER_S,
        lock_ms: int = LOCK_MS,
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        """As `Locks`. `journal` is that of the first worker; the others have theirs beside it."""
        self._journal = journal
        self._workers = [
            Locks(library, path, answer_s=answer_s, lock_ms=lock_ms, patience_ms=patience_ms)
            for path in (journal, *(journal.with_stem(f"{journal.stem}-{number}") for number in range(1, workers)))
        ]
        self._library = library
        self._beat_s = patience_ms / 4000
        self._beats: asyncio.Task[None] | None = None

    @property
    def held(self) -> frozenset[int]:
        """The processes that are locked."""
        return frozenset(pid for worker in self._workers for pid in worker.held)

    def has_leftovers(self) -> bool:
        """Whether an earlier agent may have left a process locked."""
        return any(worker.has_leftovers() for worker in self._left())

    async def start(self) -> None:
        """Undoes the locks that an earlier agent left, also one that had more workers. Raises LockError if this driver
        has no process locks."""
        first, *others = self._left()
        await first.start()
        for worker in others:
            if worker.has_leftovers():
                await worker.start()
            if worker not in self._workers:
                await worker.close()

    def _left(self) -> list[Locks]:
        """The workers, and one for each journal that none of them has."""
        known = {worker.journal for worker in self._workers}
        found = self._journal.parent.glob(f"{self._journal.stem}-*{self._journal.suffix}")
        return [*self._workers, *(Locks(self._library, path) for path in sorted(found) if path not in known)]

    async def lock(self, pid: int, within_ms: int | None = None) -> None:
        """As `Locks.lock`."""
        await self._of(pid).lock(pid, within_ms)
        self._keep_beating()

    async def unlock(self, pid: int) -> None:
        """As `Locks.unlock`."""
        await self._of(pid).unlock(pid)

    async def checkpoint(self, pid: int) -> None:
        """As `Locks.checkpoint`. May be called for several processes at once."""
        await self._of(pid).checkpoint(pid)

    async def restore(self, pid: int, step: Step | None = None) -> None:
        """As `Locks.restore`. May be called for several processes at once."""
        await self._of(pid).restore(pid, step)
        self._keep_beating()

    async def place(self, pid: int, pod: str, otherwise: str) -> str:
        """As `Locks.place`."""
        return await self._idle().place(pid, pod, otherwise)

    async def set_place(self, pod: str, place: str) -> None:
        """As `Locks.set_place`."""
        await self._idle().set_place(pod, place)

    async def state(self, pid: int) -> int | None:
        """As `Locks.state`."""
        return await self._idle().state(pid)

    async def close(self) -> None:
        """Unlocks all processes, unless the driver hangs, and refuses further locks."""
        if self._beats is not None:
            self._beats.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beats
        await asyncio.gather(*(worker.close() for worker in self._workers))

    def _of(self, pid: int) -> Locks:
        """The worker that has locked a process, else one that has little to do."""
        return next((worker for worker in self._workers if pid in worker.held), None) or min(
            self._workers, key=lambda worker: (worker.is_busy, len(worker.held))
        )

    def _idle(self) -> Locks:
        """A worker that is not copying; one that runs already, if there is any."""
        return min(self._workers, key=lambda worker: (worker.is_busy, not worker.is_running))

    def _keep_beating(self) -> None:
        if self._beats is None or self._beats.done():
            self._beats = asyncio.create_task(self._beat(), name="locks-beat")

    async def _beat(self) -> None:
        """Tells the workers that the agent is alive, as long as a process is locked. One that is busy begins its
        patience again with its answer."""
        while self.held:
            for worker in [one for one in self._workers if one.held and not one.is_busy]:
                try:
                    await worker.heartbeat()
                except LockError as error:
                    log.error("locks_lost", error=str(error), effect="the processes go on, and are stopped again")
            await asyncio.sleep(self._beat_s)
