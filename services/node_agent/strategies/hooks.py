"""Tells programs that can give their GPU memory back by themselves to sleep and to wake up (kerf.dev/suspend-hook).

The hook comes before the driver's checkpoint, which then has little left to move: a server keeps its weights in host
memory of its own and forgets what it can compute again. A program that does not sleep, or keeps its memory, is woken up
and goes on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import NamedTuple, Protocol

from services.node_agent.processes import child
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.strategies import hook_call, host_memory
from services.node_agent.strategies.host_memory import HostMemoryUnknown
from services.node_agent.strategies.lock_worker import started
from services.node_agent.strategies.locks import LockError
from shared.model.turn_terms import HttpHook, SuspendHook
from shared.model.units import MIB

ANSWER_S = 60.0
"""How long a server may take to answer: it copies its weights before it does."""
SLEPT_S = 30.0
"""How long after the answer, or the signal, until the program says it sleeps and its memory is gone."""
LOOK_S = 0.1
MORE_S = 5.0
"""What calls a program is ended so long after its own time limit: a file system of the container may not answer."""
KEPT_BYTES = 1024 * MIB
"""So much, or a tenth of what it had, a sleeping program may keep: contexts and buffers of libraries. The driver's
checkpoint moves it."""


class GpuProcesses(Protocol):
    """What the driver knows of a pod's processes. Both raise LockError or HostMemoryUnknown."""

    async def running(self, uid: str) -> tuple[int, ...]:
        """Those that run on GPUs."""

    async def on_gpus(self, uid: str) -> tuple[int, ...]:
        """Those that have GPU memory, on the host too."""


class Slept(NamedTuple):
    told: bool
    """Whether a program was told to sleep. It is to be woken up if the pod is not suspended after all."""
    why: str
    """Why it does not sleep; empty if it does, and its memory is gone, or if nothing of it runs on a GPU."""


class Hooks:
    def __init__(
        self,
        cgroups: PodCgroups,
        processes: GpuProcesses,
        held_bytes: Callable[[str], int],
        *,
        slept_s: float = SLEPT_S,
    ) -> None:
        """`held_bytes` returns what the pod's living processes have on GPUs."""
        self._cgroups, self._processes, self._held_bytes, self._slept_s = cgroups, processes, held_bytes, slept_s
        self._told: dict[str, tuple[int, int]] = {}
        """By pod, the process that was told to sleep, and when it started."""

    async def sleep(self, uid: str, hook: SuspendHook) -> Slept:
        """Tells the program of a pod to sleep, and waits until it does."""
        told = False
        try:
            before = self._held_bytes(uid)
            first = next(iter(await self._first(uid)), None) if await self._processes.running(uid) else None
            if first is None:
                return Slept(False, "")  # it has not begun, or is on the host already
            self._told = {of: (pid, since) for of, (pid, since) in self._told.items() if started(pid) == since}
            self._told[uid] = first
            told = True
            why = await self._call(first, hook, sleep=True)
            if why:
                return Slept(told, why)
            most = max(KEPT_BYTES, before // 10)
            if not await self._until(lambda: self._held_bytes(uid) <= most):
                kept = self._held_bytes(uid) // MIB
                why = f"{kept} MiB are still on its GPUs {self._slept_s:g} s after its hook, and {most // MIB} may be"
        except (OSError, LockError, HostMemoryUnknown) as error:
            return Slept(told, f"its hook could not be called: {error}")
        return Slept(told, why)

    async def wake(self, uid: str, hook: SuspendHook) -> str:
        """Returns why the program could not be woken up. To wake up one that does not sleep does nothing."""
        try:
            told = self._told.pop(uid, None)
            # A program that sleeps may have left the GPU altogether, and would not be found by what it uses there.
            is_there = told is not None and started(told[0]) == told[1]
            found = [told] if told is not None and is_there else await self._first(uid)
            if isinstance(hook, HttpHook):
                found = found[:1]  # all containers of a pod have one network
            return "; and ".join([why for one in found if (why := await self._call(one, hook, sleep=False))])
        except (OSError, LockError, HostMemoryUnknown) as error:
            return f"its hook could not be called: {error}"

    async def _first(self, uid: str) -> list[tuple[int, int]]:
        """The first process of each container that has GPU memory, the oldest first: its own PID 1, and when it
        started. Of every container where none has any: one that sleeps is known by its file then, and no other has such
        a file. Raises LockError or HostMemoryUnknown."""
        pod = self._cgroups.path(uid)
        if pod is None:
            return []
        groups = host_memory.processes(pod).values()
        using = set(await self._processes.on_gpus(uid))
        found = [group for group in groups if using & set(group)] or list(groups)
        begun = [[(since, pid) for pid in group if (since := started(pid))] for group in found]
        return [(pid, since) for since, pid in sorted(min(group) for group in begun if group)]

    async def _call(self, first: tuple[int, int], hook: SuspendHook, *, sleep: bool) -> str:
        """Returns why the program does not sleep, or is not awake, by its own word."""
        if isinstance(hook, HttpHook):
            port, path = (hook.sleep_port, hook.sleep_path) if sleep else (hook.wake_port, hook.wake_path)
            said = await self._ask("http", first, ANSWER_S, str(port), path)
            if said is None:
                return f"its server did not answer to POST :{port}{path} within {ANSWER_S:g} s"
            return "" if said.startswith("2") else f"its server answered to POST :{port}{path} with {said or 'nothing'}"
        wanted = "there" if sleep else "gone"
        said = await self._ask("signal", first, self._slept_s, hook.signal, hook.file, wanted)
        if said == wanted:
            return ""
        if said in (None, "late"):
            state = "not there" if sleep else "still there"
            return f"its file {hook.file} is {state} {self._slept_s:g} s after {hook.signal}"
        return f"its file {hook.file} or its process cannot be reached: {said}"

    async def _ask(self, how: str, first: tuple[int, int], within_s: float, *words: str) -> str | None:
        """Returns what `hook_call.py` prints; None: nothing in time."""
        pid, since = first
        caller = await asyncio.create_subprocess_exec(
            sys.executable,
            hook_call.__file__,
            how,
            str(pid),
            str(since),
            str(within_s),
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            out, _ = await asyncio.wait_for(caller.communicate(), within_s + MORE_S)
        except TimeoutError:
            return None
        finally:
            if caller.returncode is None:
                await child.end(caller)
        return out.decode(errors="replace").strip()

    async def _until(self, done: Callable[[], bool]) -> bool:
        clock = asyncio.get_running_loop().time
        until_s = clock() + self._slept_s
        while not done():
            if clock() >= until_s:
                return False
            await asyncio.sleep(LOOK_S)
        return True
