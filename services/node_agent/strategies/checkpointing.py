"""Moves a pod's GPU memory to the host and back, with the driver's checkpoint of each process (r570 and later).

The pod's cgroup gives its processes. The driver says which of them use a GPU, because NVML does not list a checkpointed
process. All of them are stopped before the first is checkpointed (`stopping.py`), and all are restored before the first
goes on: no process waits for one that is on the host. Between that they are copied side by side, and so are pods.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from pathlib import Path

from services.node_agent.moves import Move, MoveError
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.strategies import host_memory
from services.node_agent.strategies.copy_speeds import Way
from services.node_agent.strategies.host_memory import HostMemoryUnknown
from services.node_agent.strategies.lock_pool import LockPool
from services.node_agent.strategies.lock_worker import CHECKPOINTED, LOCKED, RUNNING
from services.node_agent.strategies.locks import LockError
from services.node_agent.strategies.stopping import ATTEMPTS, Attempt, Gate, OpenGate, Stopper

MAX_ROUNDS = 3
"""Maximum rounds of checkpoints. A process that starts during one round is found in the next."""
_OPEN = OpenGate()
States = Mapping[Path, Mapping[int, int | None]]
"""By cgroup and process."""


class PartialCheckpoint(Exception):
    """A part of the pod is checkpointed and could not be restored. The text says why the checkpoint failed."""


class Checkpointer:
    def __init__(
        self,
        locks: LockPool,
        cgroups: PodCgroups,
        meminfo: Callable[[], Path] = lambda: Path("/proc/meminfo"),
        stopper: Stopper | None = None,
        *,
        copied: Callable[[str, Way, float], None] = lambda uid, way, seconds: None,  # noqa: ARG005
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`copied` is called after all of a pod was copied, with the seconds that it took by `clock`."""
        self._copied_pod, self._clock = copied, clock
        self.locks, self._cgroups, self._meminfo = locks, cgroups, meminfo
        self._stopper = stopper or Stopper(locks)
        self._copying: dict[str, int] = {}
        """By pod, the bytes that are on their way to the host."""
        self._copied = asyncio.Event()
        """Set once, when a pod is copied. Then there is another."""

    async def checkpoint(
        self, uid: str, bytes_of: tuple[int, ...], gate: Gate = _OPEN, *, has_room: bool = False
    ) -> str:
        """Moves all GPU memory of the pod to the host. Returns an empty string, or why it failed; then nothing has
        moved: what was on the host before stays there, for other pods may have its place on the GPU.

        `bytes_of` holds the bytes that each of its containers has on GPUs. `gate` holds its launches; what it does is
        for the caller to undo, as are the locks of processes that were locked before. `has_room`: the caller has taken
        the room (`take_room`); it is given back here in any case. Raises PartialCheckpoint.
        """
        stopped: tuple[int, ...] = ()
        moved: set[int] = set()
        first_s: float | None = None
        """How long the copy of what ran at first took; later rounds copy what has begun meanwhile."""
        is_whole = True
        """Whether all of the pod ran then, so that its memory and that time tell how fast the copy was."""

        async def running() -> tuple[int, ...]:
            nonlocal is_whole
            states = await self._states(uid)
            if first_s is None:
                is_whole = not _in_states(states, CHECKPOINTED)
            return _in_states(states, RUNNING, LOCKED)

        try:
            why = "" if has_room else await self.take_room(uid, bytes_of)
            if why:
                return why
            for _ in range(MAX_ROUNDS):
                stopped = await self._stopper.stop(running, gate)
                if not stopped:
                    if is_whole and first_s is not None:
                        self._copied_pod(uid, "out", first_s)
                    return ""
                begun_s = self._clock()
                moved.update(stopped)  # each: an answer that comes too late says nothing of what was done
                await _side_by_side(self.locks.checkpoint(pid) for pid in stopped)
                first_s = self._clock() - begun_s if first_s is None else first_s
            why = "the pod keeps starting processes on GPUs"
        except KeyError:
            why = "one of its containers has ended, or was never taken over"
        except (LockError, HostMemoryUnknown, OSError, ValueError) as error:
            why = str(error)
        finally:
            self.give_room(uid)
        if moved and await self.restore(uid, only=moved):
            await self._let_go(stopped)
            raise PartialCheckpoint(why)
        return await self._let_go(stopped) or why

    async def restore(
        self,
        uid: str,
        move: Move | None = None,
        ready: Callable[[], str] = lambda: "",
        *,
        only: Collection[int] | None = None,
    ) -> str:
        """Moves the pod's memory back to its GPUs. Returns an empty string, or why all of it is still on the host.

        What was restored before a process that could not be goes back: no process runs while another one is away. If
        that fails, too, it runs. `move`: it comes back to other GPUs; processes that run, as one that has begun
        meanwhile, go with it. `ready` is called while all are locked, when their memory is where it shall be; it
        returns why they must not run. `only`: these processes alone; None: all that are on the host.
        """
        done: list[int] = []
        seconds = 0.0

        async def restored(pid: int) -> None:
            step = None if move is None else move.step(await self.locks.place(pid, uid, move.before))
            await self.locks.restore(pid, step)
            done.append(pid)

        try:
            if move is not None:
                await self._take_along(uid, move)
            states = await self._states(uid)
            on_host = _in_states(states, CHECKPOINTED)
            away = tuple(pid for pid in on_host if only is None or pid in only)
            is_whole = bool(away) and away == on_host and not _in_states(states, RUNNING, LOCKED)
            begun_s = self._clock()
            await _side_by_side(map(restored, away))
            seconds = self._clock() - begun_s
            if move is not None and not move.tries:
                await self.locks.set_place(uid, move.after)
            why = ready()
            if why:
                return f"{why}{await self._back_to_host(done)}"
        except (LockError, HostMemoryUnknown, MoveError) as error:
            return f"{error}{await self._back_to_host(done)}"
        why = await self._let_go(done)
        if is_whole:
            self._copied_pod(uid, "back", seconds)
        return why

    async def why_immovable(self, uid: str) -> str:
        """Why the pod's processes cannot be moved, by themselves; empty: nothing is known. Raises LockError,
        HostMemoryUnknown.

        The driver takes no map for a process that sees some GPUs alone (NVIDIA/cuda-checkpoint, issue 35), and tells it
        only when a map leads to other ones. What a program sets for itself while it runs is not seen here.
        """
        for pid in _in_states(await self._states(uid), CHECKPOINTED):
            if _sees_some(pid):
                return "CUDA_VISIBLE_DEVICES is set for one of its processes, so the driver takes no map of GPUs"
        return ""

    async def _take_along(self, uid: str, move: Move) -> None:
        """Checkpoints the processes that run on other GPUs than the pod will have. Raises LockError or
        HostMemoryUnknown."""

        async def elsewhere() -> tuple[int, ...]:
            running = await self.running(uid)
            return tuple([pid for pid in running if await self.locks.place(pid, uid, move.before) != move.after])

        for _ in range(MAX_ROUNDS):
            stopped = await self._stopper.stop(elsewhere, _OPEN)
            await _side_by_side(map(self.locks.checkpoint, stopped))
            if not stopped:
                return

    async def stop(
        self, uids: tuple[str, ...], gate: Gate, attempts: tuple[Attempt, ...] = ATTEMPTS
    ) -> tuple[int, ...]:
        """Stops all processes of several pods together, and returns them. Raises LockError or HostMemoryUnknown."""

        async def running() -> tuple[int, ...]:
            return tuple([pid for uid in uids for pid in await self.running(uid)])

        return await self._stopper.stop(running, gate, attempts)

    async def let_go(self, pids: tuple[int, ...]) -> None:
        """Lets stopped processes go on. Raises LockError."""
        await self._stopper.let_go(pids)

    async def is_on_host(self, uid: str) -> bool:
        """Whether a process of the pod is checkpointed. Raises LockError or HostMemoryUnknown if that is unknown."""
        return bool(_in_states(await self._states(uid), CHECKPOINTED))

    async def running(self, uid: str) -> tuple[int, ...]:
        """The processes of the pod on GPUs that are not checkpointed. Raises LockError or HostMemoryUnknown."""
        return _in_states(await self._states(uid), RUNNING, LOCKED)

    async def on_gpus(self, uid: str) -> tuple[int, ...]:
        """The processes of the pod that have GPU memory, wherever it is now. Raises LockError or HostMemoryUnknown if
        that is unknown."""
        return _in_states(await self._states(uid), RUNNING, LOCKED, CHECKPOINTED)

    async def no_room(self, uid: str, bytes_of: tuple[int, ...]) -> str:
        """Why the host has no room for what the pod has on GPUs, besides what is on its way there; empty if it has.
        Raises LockError or HostMemoryUnknown."""
        states, pod = await self._states(uid), self._cgroups.path(uid)
        found = [folder for folder, group in states.items() if _in_states({folder: group}, RUNNING, LOCKED)]
        if not found or pod is None:
            return ""
        # It is unknown here which container a cgroup belongs to, so each may be the largest.
        most = sum(bytes_of) if len(found) == 1 else max(bytes_of, default=0)
        others = sum(self._copying.values()) - self._copying.get(uid, 0)
        return host_memory.refusal(pod, dict.fromkeys(found, most), sum(bytes_of), self._meminfo(), others)

    async def take_room(self, uid: str, bytes_of: tuple[int, ...], *, waits: bool = True) -> str:
        """As `no_room`; keeps the room until `give_room`. What is on its way to the host may be there already and be
        counted twice, so a pod that `waits` is refused only when nothing is."""
        while (why := await self.no_room(uid, bytes_of)) and waits and self._copying:
            await self._copied.wait()
        if not why:
            self._copying[uid] = sum(bytes_of)
        return why

    def give_room(self, uid: str) -> None:
        """Gives back what `take_room` has kept for the pod. Does nothing if it has kept nothing."""
        if self._copying.pop(uid, None) is not None:
            self._copied.set()
            self._copied = asyncio.Event()

    async def _back_to_host(self, pids: list[int]) -> str:
        """Returns what has to be added to why a restore has failed."""
        try:
            await _side_by_side(map(self.locks.checkpoint, pids))
        except LockError as error:
            return f"; and {error}{await self._let_go(pids)}"
        return ""

    async def _let_go(self, pids: list[int] | tuple[int, ...]) -> str:
        try:
            await self._stopper.let_go(pids)
        except LockError as error:
            return str(error)
        return ""

    async def _states(self, uid: str) -> States:
        """Returns the driver's state of each process of the pod; None for one that has nothing on GPUs. A pod
        without a cgroup has no processes. Raises LockError or HostMemoryUnknown."""
        pod = self._cgroups.path(uid)
        groups = {} if pod is None else host_memory.processes(pod)
        return {folder: {pid: await self.locks.state(pid) for pid in pids} for folder, pids in groups.items()}


def _in_states(states: States, *wanted: int) -> tuple[int, ...]:
    return tuple(pid for group in states.values() for pid, state in group.items() if state in wanted)


async def _side_by_side(calls: Iterable[Coroutine[object, object, None]]) -> None:
    """Makes all of these calls, and raises the first error when all are over."""
    for found in await asyncio.gather(*calls, return_exceptions=True):
        if found is not None:
            raise found


def _sees_some(pid: int) -> bool:
    """Whether a process was started with a choice of GPUs. One that has ended was not."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return any(line.startswith(b"CUDA_VISIBLE_DEVICES=") for line in environment.split(b"\0"))
