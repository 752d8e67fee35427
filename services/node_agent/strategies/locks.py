"""The driver's process locks (cuCheckpointProcessLock, r570 and later), from the agent: each call in another process, in bounded time.

A locked process keeps its memory and begins nothing on any GPU; the driver itself sees to it, whatever the process does. The
calls may hang, so they are made by a worker process (`lock_worker.py`) that can be killed, and whose journal its successor
undoes. Who is locked is therefore unlocked when the agent ends, is killed or frozen, and when the worker is; where both are
killed at once, at the agent's next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import structlog

from services.node_agent.strategies import lock_worker

LOCK_MS = 2_000
"""How long the driver may wait until what the process has in flight is done."""
ANSWER_S = 5.0
START_S = 10.0
PATIENCE_MS = 2_000
COPY_S = 120.0
"""Of a GPU's memory to the host or back: some 10 GB in a second."""

log = structlog.get_logger("locks")


class LockError(Exception):
    """It is not locked; the text says why. Where the driver did not answer, nobody of this worker is."""


class Locks:
    def __init__(
        self,
        library: str,
        journal: Path,
        *,
        answer_s: float = ANSWER_S,
        lock_ms: int = LOCK_MS,
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        """`library`: the driver's libcuda. `journal`: on the host, in a folder that a reboot empties."""
        self._library, self._journal = library, journal
        self._answer_s, self._lock_ms, self._patience_ms = answer_s, lock_ms, patience_ms
        self._worker: asyncio.subprocess.Process | None = None
        self._serial = asyncio.Lock()
        self._beaten_s = 0.0
        self._closed = False
        self.held: set[int] = set()

    def has_leftovers(self) -> bool:
        """Whether an earlier agent may have left somebody locked."""
        return bool(lock_worker.Journal(self._journal).leftovers())

    async def start(self) -> None:
        """Undoes what an earlier agent left. Raises LockError where this driver has no locks."""
        async with self._serial:
            await self._begin()

    async def lock(self, pid: int) -> None:
        """Returns when the process begins nothing more. Raises LockError."""
        async with self._serial:
            result = await self._ask(f"lock {pid} {self._lock_ms}")
            if result:
                raise LockError(f"the driver answers {result} to the lock of process {pid}")
            if not self.held:
                self._beaten_s = asyncio.get_running_loop().time()
            self.held.add(pid)

    async def unlock(self, pid: int) -> None:
        """Nothing where it is not locked. Raises LockError where the driver did not answer: then a new worker has tried too."""
        async with self._serial:
            if pid in self.held:
                self.held.discard(pid)
                result = await self._ask(f"unlock {pid}")
                if result:
                    log.error(
                        "unlock_failed",
                        pid=pid,
                        driver=result,
                        effect="tried again while the driver says that it is locked",
                    )

    async def checkpoint(self, pid: int) -> None:
        """Returns when its memory is on the host and free on its GPUs. It stays so until it is restored, whoever dies. Raises
        LockError: then it runs as before, or, where the driver did not answer, `state` says how it is."""
        async with self._serial:
            result = await self._ask(f"checkpoint {pid} {self._lock_ms}", COPY_S)
            if result:
                raise LockError(f"the driver answers {result} to the checkpoint of process {pid}")

    async def restore(self, pid: int) -> None:
        """Returns when it runs with all its memory; nothing where it is not checkpointed. Raises LockError: then it still is."""
        async with self._serial:
            result = await self._ask(f"restore {pid}", COPY_S)
            if result:
                raise LockError(f"the driver answers {result} to the restoring of process {pid}")

    async def state(self, pid: int) -> int | None:
        """CUprocessState; None where the driver does not know the process. Raises LockError where it does not answer."""
        async with self._serial:
            found = await self._ask(f"state {pid}")
        return found if found >= 0 else None

    async def heartbeat(self) -> None:
        """To be called more often than the worker's patience lasts, while anybody is locked. Whoever was unlocked meanwhile,
        by a worker that lost its patience or by the successor of one that died, is `held` no more. Raises LockError."""
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
                with contextlib.suppress(ConnectionError):  # it has died: the next call finds it out
                    worker.stdin.write(b"beat\n")
                    await worker.stdin.drain()

    async def close(self) -> None:
        """Everybody is unlocked when it returns, unless the driver hangs; and nobody is locked after it."""
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
            worker.kill()
            await worker.wait()

    async def _begin(self) -> asyncio.subprocess.Process:
        self.held.clear()
        if self._closed:
            raise LockError("the agent is ending: nobody is locked any more")
        self._journal.parent.mkdir(parents=True, exist_ok=True)
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            lock_worker.__file__,
            self._library,
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
            raise LockError(f"the driver's locks cannot be used: {await self._end(worker)}")
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
            return int(line)
        except ValueError:
            why = await self._end(worker)
        # Its successor undoes what this one had locked.
        await self._begin()
        raise LockError(f"the driver did not answer to {order!r}: {why}")

    async def _end(self, worker: asyncio.subprocess.Process) -> str:
        """Kills it; its last words."""
        self._worker = None
        self.held.clear()
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        _, errors = await worker.communicate()
        words = errors.decode(errors="replace").strip().splitlines()
        return words[-1] if words else f"it said nothing within {self._answer_s:g} s"
