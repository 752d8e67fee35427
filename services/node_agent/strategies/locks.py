"""The driver's process locks (cuCheckpointProcessLock, r570 and later), called in another process and in bounded time.

A locked process keeps its memory and begins no work on any GPU. The driver enforces that, whatever the process does.
The calls may hang, so a worker process (`lock_worker.py`) makes them. The worker can be killed, and its successor
undoes its journal. So a locked process is unlocked when the agent ends, is killed or frozen, and when the worker is; if
both are killed at once, at the agent's next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import structlog

from services.node_agent.moves import Step
from services.node_agent.processes import child
from services.node_agent.strategies import lock_worker

LOCK_MS = 2_000
"""How long the driver may wait for the process's work in flight."""
ANSWER_S = 5.0
START_S = 10.0
PATIENCE_MS = 2_000
COPY_S = 120.0
"""Timeout of a copy of GPU memory to the host or back, which runs at about 10 GB per second."""

Library = str | Callable[[], str]
"""Path of the driver's libcuda, or what returns it when a worker starts: the driver may come after the agent."""

log = structlog.get_logger("locks")


class LockError(Exception):
    """A call failed; the text says why. If the driver did not answer, this worker has no process locked any more."""


class NoAnswer(LockError):
    """The driver hangs. The worker was killed, and its successor has undone all locks."""


class NoWorker(LockError):
    """No worker could be started: there is no driver, or it does not work now. That means nothing for the process."""


class Locks:
    def __init__(
        self,
        library: Library,
        journal: Path,
        *,
        answer_s: float = ANSWER_S,
        lock_ms: int = LOCK_MS,
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        """`journal`: a file on the host, in a folder that a reboot empties."""
        self._library, self._journal = library, journal
        self._answer_s, self._lock_ms, self._patience_ms = answer_s, lock_ms, patience_ms
        self._worker: asyncio.subprocess.Process | None = None
        self._serial = asyncio.Lock()
        self._beaten_s = 0.0
        self._closed = False
        self.held: set[int] = set()

    @property
    def journal(self) -> Path:
        return self._journal

    @property
    def is_busy(self) -> bool:
        """Whether its worker has not answered yet."""
        return self._serial.locked()

    @property
    def is_running(self) -> bool:
        return self._worker is not None and self._worker.returncode is None

    def has_leftovers(self) -> bool:
        """Whether an earlier agent may have left a process locked."""
        return bool(lock_worker.Journal(self._journal).leftovers())

    async def start(self) -> None:
        """Undoes the locks that an earlier agent left. Raises LockError if this driver has no process locks."""
        async with self._serial:
            await self._begin()

    async def lock(self, pid: int, within_ms: int | None = None) -> None:
        """Locks a process. When it returns, the process begins no more work. Raises LockError.

        `within_ms`: for how long the driver may wait for the process's work; it is never longer than LOCK_MS.
        """
        most_ms = self._lock_ms if within_ms is None else max(1, min(within_ms, self._lock_ms))
        async with self._serial:
            result = await self._ask(f"lock {pid} {most_ms}")
            if result:
                raise LockError(f"the driver answers {result} to the lock of process {pid}")
            if not self.held:
                self._beaten_s = asyncio.get_running_loop().time()
            self.held.add(pid)

    async def unlock(self, pid: int) -> None:
        """Unlocks a process. Does nothing if it is not locked.

        Raises LockError if the driver did not answer; then a new worker has tried, too.
        """
        async with self._serial:
            if pid in self.held:
                self.held.discard(pid)
                result = await self._ask(f"unlock {pid}")
                if result:
                    log.error(
                        "unlock_failed",
                        pid=pid,
                        driver=result,
                        effect="retried while the driver reports the process as locked",
                    )

    async def checkpoint(self, pid: int) -> None:
        """Checkpoints a process. When it returns, the process's memory is on the host and free on its GPUs.

        The process stays checkpointed until it is restored, even if the agent or the worker dies. Raises LockError;
        then the process runs, or is locked, as before. If the driver did not answer, `state` returns its state.
        """
        async with self._serial:
            result = await self._ask(f"checkpoint {pid} {self._lock_ms}", COPY_S)
            if result:
                raise LockError(f"the driver answers {result} to the checkpoint of process {pid}")
            self.held.discard(pid)

    async def restore(self, pid: int, step: Step | None = None) -> None:
        """Moves a checkpointed process's memory back; then the process is locked, until `unlock`. Does nothing to one
        that runs. `step`: to other GPUs.

        Raises LockError; then the process is still checkpointed.
        """
        how = "" if step is None else f" {step.mapped} {step.before} {step.after}"
        async with self._serial:
            result = await self._ask(f"restore {pid}{how}", COPY_S)
            if result:
                raise LockError(f"the driver answers {result} to the restoring of process {pid}")
            if await self._ask(f"state {pid}") == lock_worker.LOCKED:
                self.held.add(pid)

    async def place(self, pid: int, pod: str, otherwise: str) -> str:
        """On which GPUs a process is, of a pod that may have been moved; `otherwise`: where its pod's processes began.
        Raises LockError."""
        is_checkpointed = await self.state(pid) == lock_worker.CHECKPOINTED
        return lock_worker.Places(lock_worker.places_beside(self._journal)).place(
            pid, pod, otherwise, is_checkpointed=is_checkpointed
        )

    async def set_place(self, pod: str, place: str) -> None:
        """Notes on which GPUs the pod's processes begin from now on. Raises LockError."""
        async with self._serial:
            await self._ask(f"placed {pod} {place}")

    async def state(self, pid: int) -> int | None:
        """Returns the process's CUprocessState, or None if the driver does not know it.

        Raises LockError if the driver does not answer.
        """
        async with self._serial:
            found = await self._ask(f"state {pid}")
        return found if found >= 0 else None

    async def heartbeat(self) -> None:
        """Tells the worker that the agent is alive. While a process is locked, the agent must call it more often than
        the worker's patience.

        Updates `held`: a worker whose patience has ended, or the successor of one that died, unlocks processes. Raises
        LockError.
        """
        async with self._serial:
            now, worker = asyncio.get_running_loop().time(), self._worker
            late, self._beaten_s = now - self._beaten_s > self._patience_ms / 1000, now
            if worker is None or not self.held:
                return
            if late:
                self.held.clear()
                await self._ask("undo")
            elif worker.returncode is not None:
                await self._begin()
            elif worker.stdin is not None:
                with contextlib.suppress(ConnectionError):  # the worker has died: the next call starts another
                    worker.stdin.write(b"beat\n")
                    await worker.stdin.drain()

    async def close(self) -> None:
        """Unlocks all processes, unless the driver hangs, and refuses further locks."""
        self._closed = True
        async with self._serial:
            await self._let_go()

    async def _let_go(self) -> None:
        worker, self._worker = self._worker, None
        self.held.clear()
        if worker is None or worker.stdin is None:
            return
        worker.stdin.close()
        try:
            await asyncio.wait_for(worker.wait(), self._answer_s)
        except TimeoutError:
            log.error(
                "locks_not_undone",
                effect="the agent's next start unlocks what the journal names",
                journal=str(self._journal),
            )
            await child.end(worker)

    async def _begin(self) -> asyncio.subprocess.Process:
        self.held.clear()
        if self._closed:
            raise LockError("the agent is terminating and locks no more processes")
        self._journal.parent.mkdir(parents=True, exist_ok=True)
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            lock_worker.__file__,
            self._library if isinstance(self._library, str) else self._library(),
            str(self._journal),
            str(self._patience_ms),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert worker.stdout is not None  # noqa: S101 - a pipe was asked for
        try:
            line = await asyncio.wait_for(worker.stdout.readline(), START_S)
        except TimeoutError:
            line = b""
        if line.strip() != b"ready":
            why = await self._end(worker)
            # The worker's AttributeError: a driver before r570 has no locks, and stays while programs use it.
            kind = LockError if why.startswith("AttributeError") else NoWorker
            raise kind(f"the driver's locks cannot be used: {why}")
        self._worker = worker
        return worker

    async def _ask(self, order: str, answer_s: float | None = None) -> int:
        worker = self._worker
        if worker is None or worker.returncode is not None:
            worker = await self._begin()
        assert worker.stdin is not None  # noqa: S101 - pipes were asked for
        assert worker.stdout is not None  # noqa: S101
        line = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            worker.stdin.write(f"{order}\n".encode())
            await worker.stdin.drain()
            line = await asyncio.wait_for(worker.stdout.readline(), answer_s or self._answer_s)
        try:
            result = int(line)
        except ValueError:
            why = await self._end(worker)
        else:
            self._beaten_s = asyncio.get_running_loop().time()  # the worker's patience begins again with each order
            return result
        # Its successor undoes what this one had locked.
        await self._begin()
        raise NoAnswer(f"the driver did not answer to {order!r}: {why}")

    async def _end(self, worker: asyncio.subprocess.Process) -> str:
        """Kills the worker and returns the last line of its error output."""
        self._worker = None
        self.held.clear()
        errors = await child.end(worker)
        if errors is None:
            return child.STUCK
        words = errors.decode(errors="replace").strip().splitlines()
        return words[-1] if words else f"no output within {self._answer_s:g} s"
