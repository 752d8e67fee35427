"""The worker process that calls the driver's process locks. `locks.py` runs it as a program.

    python lock_worker.py LIBCUDA JOURNAL PATIENCE_MS

It reads `lock PID TIMEOUT_MS`, `unlock PID`, `checkpoint PID TIMEOUT_MS`, `restore PID`, `restore PID MAP BEFORE
AFTER`, `placed POD PLACE`, `state PID`, `undo` and `beat` line by line. It answers each line except `beat` with the
driver's result (`state`: the state, or the negative result if the call fails).
- A process is written to the journal before it is locked, and removed only after the unlock. At its start the worker
  unlocks the processes in the journal of a worker that was killed.
- A checkpointed process stays checkpointed, even if the agent or the worker dies, because other pods use its memory.
  Only the locks around a checkpoint and a restore are undone. A restored process is locked until `unlock`.
- A restore with a map of GPUs (r580 and later) moves what the process has. Where it is then is written before and after
  it (`Places`), so that whoever comes next knows from which GPUs the next map has to lead.
- When the worker's input ends (the agent is gone), it unlocks everything and ends. When it reads nothing for
  PATIENCE_MS (the agent is frozen), it unlocks everything and continues. It runs in a session of its own, so that it
  does not get the agent's signals.

It imports nothing of Kerf, so that it works when the rest of Kerf does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
from pathlib import Path

UNREADABLE = -1
"""The answer to a line that the worker does not understand. It is not a result of the driver."""
MOST_PODS = 1024
"""Of so many pods it is kept where their processes begin."""
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
"""CUprocessState of cuda.h."""
INVALID_VALUE = 1
"""The driver's result for a process that it does not know."""


class LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs of cuda.h."""

    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7))


def started(pid: int) -> int:
    """Returns when a process started, in clock ticks since boot; 0 if it is gone. A reused PID has another start
    time."""
    try:
        # A process may have any bytes as its name.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


class Journal:
    """A file with the PIDs and start times of locked processes. A reboot removes it, and the processes with it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.held: dict[int, int] = {}

    def leftovers(self) -> dict[int, int]:
        """Returns the processes that an earlier worker left locked and that still exist."""
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


class GpuPair(ctypes.Structure):
    """CUcheckpointGpuPair of cuda.h."""

    _fields_ = (("old", ctypes.c_uint8 * 16), ("new", ctypes.c_uint8 * 16))


class RestoreArgs(ctypes.Structure):
    """CUcheckpointRestoreArgs of cuda.h, 64 bytes."""

    _fields_ = (
        ("pairs", ctypes.POINTER(GpuPair)),
        ("pair_count", ctypes.c_uint),
        ("reserved", ctypes.c_uint8 * 52),
    )


def restore_args(words: str) -> RestoreArgs:
    """Reads a map such as GPU-...=GPU-...,GPU-...=GPU-... Raises ValueError."""
    pairs = [pair.split("=") for pair in words.split(",")]
    array = (GpuPair * len(pairs))()
    for at, (old, new) in zip(array, pairs, strict=True):
        for to, uuid in ((at.old, old), (at.new, new)):
            found = bytes.fromhex(uuid.removeprefix("GPU-").replace("-", ""))
            if len(found) != len(to):
                raise ValueError(f"{uuid!r} is not a GPU UUID")
            to[:] = found
    return RestoreArgs(pairs=array, pair_count=len(pairs))


class Places:
    """A file that says on which GPUs processes are that were moved, and where those of a moved pod begin.

    A place is the UUIDs of a pod's GPUs in the order of its grant, separated by commas. While a restore is going on
    there are two: only the driver's state of the process says which is right.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, list[object]]:
        """By PID: start time, place, and the place after the restore that was begun; by a pod's UID: its place."""
        try:
            found = json.loads(self._path.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return {str(key): list(value) for key, value in found.items()}

    def place(self, pid: int, pod: str, otherwise: str, *, is_checkpointed: bool) -> str:
        """Where the process is. A restore that was begun has happened unless it is still checkpointed."""
        known = self.read()
        since, at, going = known.get(str(pid), (None, "", ""))
        if since == started(pid):
            return str(at if is_checkpointed or not going else going)
        return str(known.get(pod, (otherwise,))[0])

    def write(self, key: str, *value: object) -> None:
        with self._path.with_suffix(".lock").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)  # other workers write to the same file
            self._write(key, value)

    def _write(self, key: str, value: tuple[object, ...]) -> None:
        known = self.read()
        known.pop(key, None)
        kept = {name: told for name, told in known.items() if not name.isdecimal() or told[0] == started(int(name))}
        # Of pods that have ended the places are useless; nothing tells the worker of their end.
        for name in [name for name in kept if not name.isdecimal()][:-MOST_PODS]:
            del kept[name]
        beside = self._path.with_suffix(".new")
        with beside.open("w") as file:
            file.write(json.dumps(kept | {key: value}))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)


class Worker:
    def __init__(self, library: str, journal: Journal, places: Places) -> None:
        """Raises OSError if there is no such library, AttributeError if the driver is older than r570."""
        driver = ctypes.CDLL(library)
        self._lock, self._unlock = driver.cuCheckpointProcessLock, driver.cuCheckpointProcessUnlock
        self._state = driver.cuCheckpointProcessGetState
        self._driver, self._journal, self._places = driver, journal, places
        begun = driver.cuInit(0)
        if begun:
            raise OSError(f"cuInit returned {begun}")
        for pid, since in journal.leftovers().items():
            journal.held[pid] = since
        self.undo()

    def lock(self, pid: int, timeout_ms: int) -> int:
        """Returns the driver's result. After a failure it unlocks, because the lock may hold despite a time-out."""
        self._journal.add(pid)
        result = int(self._lock(pid, ctypes.byref(LockArgs(timeout_ms=timeout_ms))))
        if result:
            self.unlock(pid)
        return result

    def unlock(self, pid: int) -> int:
        """Returns the driver's result. A process that is still locked stays in the journal; the worker tries again when
        its patience ends and at each start."""
        result = int(self._unlock(pid, None))
        if result == 0 or not self._locked(pid):
            self._journal.remove(pid)
        return result

    def state(self, pid: int) -> int:
        """Returns the process's state, or the driver's negative result if the call fails."""
        state = ctypes.c_int(RUNNING)
        told = int(self._state(pid, ctypes.byref(state)))
        return -told if told else state.value

    def checkpoint(self, pid: int, timeout_ms: int) -> int:
        """Returns the driver's result. After a failure the process runs, or is locked, as before."""
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

    def restore(self, pid: int, mapped: str = "", before: str = "", after: str = "") -> int:
        """Returns the driver's result. Then the process is locked; after a failure it stays checkpointed.

        `mapped`: to which GPU each is moved; `before` and `after`: the place of the process.
        """
        if self.state(pid) != CHECKPOINTED:
            return 0
        try:
            args = ctypes.byref(restore_args(mapped)) if mapped else None
        except ValueError:
            return UNREADABLE
        self._journal.add(pid)
        if mapped:
            self._places.write(str(pid), started(pid), before, after)
        result = int(self._driver.cuCheckpointProcessRestore(pid, args))
        if result:
            self._journal.remove(pid)
        if mapped:
            self._places.write(str(pid), started(pid), before if result else after, "")
        return result

    def placed(self, name: str, place: str) -> int:
        """Notes where the processes of a pod begin."""
        self._places.write(name, place)
        return 0

    def _locked(self, pid: int) -> bool:
        """Whether a process is locked. If the driver cannot tell, the process counts as locked, unless the driver does
        not know it or it is gone."""
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


def places_beside(journal: Path) -> Path:
    return journal.with_name("moved.json")


def main(library: str, journal: str, patience_ms: str) -> None:
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker(library, Journal(Path(journal)), Places(places_beside(Path(journal))))
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
        case ["restore", pid, mapped, before, after] if pid.isdecimal():
            _answer(worker.restore(int(pid), mapped, before, after))
        case ["placed", name, place]:
            _answer(worker.placed(name, place))
        case ["state", pid] if pid.isdecimal():
            _answer(worker.state(int(pid)))
        case ["undo"]:
            worker.undo()
            _answer(0)
        case _:
            _answer(UNREADABLE)


def _answer(result: int | str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the agent is gone; the input will end, too
        os.write(1, f"{result}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:4])
