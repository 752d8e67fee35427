"""The process that calls the driver's process locks, so that nobody stays locked: run as a program, by `locks.py` alone.

    python lock_worker.py LIBCUDA JOURNAL PATIENCE_MS

It reads `lock PID TIMEOUT_MS`, `unlock PID`, `checkpoint PID TIMEOUT_MS`, `restore PID`, `state PID`, `undo` and `beat` line by
line, and answers all but `beat` with the driver's result (`state`: the state, or minus the result where the driver has none).
- What it locks stands in the journal before it is locked, and leaves it only after the unlock. At its start it unlocks what the
  journal of one that was killed still names.
- Who is checkpointed stays so, whoever dies: others have the memory. Only the locks around a checkpoint and a restore are undone.
- When its input ends (the agent is gone) it unlocks everything and ends; when it hears nothing for PATIENCE_MS (the agent is
  frozen) it unlocks everything and goes on. It lives in a session of its own, so that a signal for the agent leaves it alone.

It imports nothing of Kerf: it has to stand when the rest does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from pathlib import Path

UNREADABLE = -1
"""An answer that is no result of the driver's: the order was not understood."""
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
"""CUprocessState of cuda.h."""
INVALID_VALUE = 1
"""What the driver answers about a process that it does not know."""


class LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs of cuda.h."""

    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7))


def started(pid: int) -> int:
    """When a process began, in clock ticks since boot: a PID that is taken by another one has another. 0: it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


class Journal:
    """PIDs with their start times. Lost with the host's memory, like the processes themselves."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.held: dict[int, int] = {}

    def leftovers(self) -> dict[int, int]:
        """What one before us left, of processes that still are the same."""
        try:
            found = {int(pid): int(begun) for pid, begun in json.loads(self._path.read_text()).items()}
        except (FileNotFoundError, ValueError):
            return {}
        return {pid: begun for pid, begun in found.items() if started(pid) == begun}

    def add(self, pid: int) -> None:
        self.held[pid] = started(pid)
        self._write()

    def remove(self, pid: int) -> None:
        self.held.pop(pid, None)
        self._write()

    def _write(self) -> None:
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(self.held))
        beside.replace(self._path)


class Worker:
    def __init__(self, library: str, journal: Journal) -> None:
        """Raises OSError where there is no such library, AttributeError where the driver is older than r570."""
        driver = ctypes.CDLL(library)
        self._lock, self._unlock = driver.cuCheckpointProcessLock, driver.cuCheckpointProcessUnlock
        self._state = driver.cuCheckpointProcessGetState
        self._driver, self._journal = driver, journal
        begun = driver.cuInit(0)
        if begun:
            raise OSError(f"cuInit says {begun}")
        for pid, since in journal.leftovers().items():
            journal.held[pid] = since
        self.undo()

    def lock(self, pid: int, timeout_ms: int) -> int:
        """The driver's result. On a failure it is unlocked: a time-out may come when the lock already stands."""
        self._journal.add(pid)
        result = int(self._lock(pid, ctypes.byref(LockArgs(timeout_ms=timeout_ms))))
        if result:
            self.unlock(pid)
        return result

    def unlock(self, pid: int) -> int:
        """The driver's result. Who is still locked stays in the journal, and is tried again when patience ends and at each start."""
        result = int(self._unlock(pid, None))
        if result == 0 or not self._locked(pid):
            self._journal.remove(pid)
        return result

    def state(self, pid: int) -> int:
        """Minus the driver's result where it does not say."""
        state = ctypes.c_int(RUNNING)
        told = int(self._state(pid, ctypes.byref(state)))
        return -told if told else state.value

    def checkpoint(self, pid: int, timeout_ms: int) -> int:
        """The driver's result. On a failure it runs, or is locked, as before."""
        found = self.state(pid)
        if found == CHECKPOINTED:
            return 0
        if found == RUNNING:
            result = self.lock(pid, timeout_ms)
            if result:
                return result
        result = int(self._driver.cuCheckpointProcessCheckpoint(pid, None))
        if result and found == RUNNING:
            self.unlock(pid)
        elif not result:
            self._journal.remove(pid)
        return result

    def restore(self, pid: int) -> int:
        """The driver's result. On a failure it stays checkpointed."""
        if self.state(pid) == CHECKPOINTED:
            self._journal.add(pid)
            result = int(self._driver.cuCheckpointProcessRestore(pid, None))
            if result:
                self._journal.remove(pid)
                return result
            return self.unlock(pid)
        return 0

    def _locked(self, pid: int) -> bool:
        """A driver that cannot say is taken to have it locked, unless it does not know the process, or it is gone."""
        state = ctypes.c_int(RUNNING)
        told = int(self._state(pid, ctypes.byref(state)))
        if told:
            return told != INVALID_VALUE and started(pid) == self._journal.held.get(pid)
        return state.value not in (RUNNING, CHECKPOINTED, FAILED)

    def undo(self) -> None:
        for pid in tuple(self._journal.held):
            self.unlock(pid)

    @property
    def holds(self) -> bool:
        return bool(self._journal.held)


def main(library: str, journal: str, patience_ms: str) -> None:
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker(library, Journal(Path(journal)))
    _answer("ready")
    pending = b""
    while True:
        readable, _, _ = select.select([0], [], [], int(patience_ms) / 1000 if worker.holds else None)
        if not readable:
            worker.undo()
            continue
        more = os.read(0, 65536)
        if not more:
            worker.undo()
            return
        *lines, pending = (pending + more).split(b"\n")
        for line in lines:
            _obey(worker, line.decode(errors="replace").split())


def _obey(worker: Worker, words: list[str]) -> None:
    match words:
        case ["beat"]:
            pass
        case ["lock", pid, timeout_ms] if pid.isdecimal() and timeout_ms.isdecimal():
            _answer(worker.lock(int(pid), int(timeout_ms)))
        case ["unlock", pid] if pid.isdecimal():
            _answer(worker.unlock(int(pid)))
        case ["checkpoint", pid, timeout_ms] if pid.isdecimal() and timeout_ms.isdecimal():
            _answer(worker.checkpoint(int(pid), int(timeout_ms)))
        case ["restore", pid] if pid.isdecimal():
            _answer(worker.restore(int(pid)))
        case ["state", pid] if pid.isdecimal():
            _answer(worker.state(int(pid)))
        case ["undo"]:
            worker.undo()
            _answer(0)
        case _:
            _answer(UNREADABLE)


def _answer(result: int | str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more: the end of the input says the same
        os.write(1, f"{result}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:4])
