"""Tells programs that can give their GPU memory back by themselves to sleep and to wake up (kerf.dev/suspend-hook).

The hook comes before the driver's checkpoint, which then has little left to move: a server keeps its weights in host
memory of its own and forgets what it can compute again. A program that does not sleep, or keeps its memory, is woken up
and goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.strategies import hook_call, host_memory
from services.node_agent.strategies.host_memory import HostMemoryUnknown
from services.node_agent.strategies.lock_worker import started
from services.node_agent.worker import Hung, Worker
from shared.model.turn_terms import HttpHook, SignalHook, SuspendHook
from shared.model.units import MIB

ANSWER_S = 60.0
"""How long a server may take to answer: it copies its weights before it does."""
SLEPT_S = 30.0
"""How long after the answer, or the signal, until the program says it sleeps and its memory is gone."""
LOOK_S = 0.1
FILE_S = 1.0
"""Time limit for one look at a file in a container, whose file systems may not answer."""
KEPT_BYTES = 1024 * MIB
"""So much, or a tenth of what it had, a sleeping program may keep: contexts and buffers of libraries. The driver's
checkpoint moves it."""


class Hooks:
    def __init__(
        self,
        cgroups: PodCgroups,
        on_gpus: Callable[[str], Awaitable[tuple[int, ...]]],
        held_bytes: Callable[[str], int],
        *,
        slept_s: float = SLEPT_S,
    ) -> None:
        """`on_gpus` returns the pod's processes on GPUs, `held_bytes` what the pod's living processes have there."""
        self._cgroups, self._on_gpus, self._held_bytes, self._slept_s = cgroups, on_gpus, held_bytes, slept_s
        self._files = Worker(FILE_S)

    async def sleep(self, uid: str, hook: SuspendHook) -> str:
        """Returns why the program does not sleep; empty if it does, and its memory is gone."""
        before = self._held_bytes(uid)
        pid = await self._first(uid)
        if not pid:
            return ""  # nothing of it runs
        why = (
            await self._post(pid, hook.sleep_port, hook.sleep_path)
            if isinstance(hook, HttpHook)
            else await self._signal(pid, hook, there=True)
        )
        if why:
            return why
        most = max(KEPT_BYTES, before // 10)
        if not await self._until(lambda: self._held_bytes(uid) <= most):
            kept = self._held_bytes(uid) // MIB
            return f"{kept} MiB are still on its GPUs {self._slept_s:g} s after its hook, and {most // MIB} may be"
        return ""

    async def wake(self, uid: str, hook: SuspendHook) -> str:
        """Returns why the program could not be woken up. To wake up one that does not sleep does nothing."""
        pid = await self._first(uid)
        if not pid:
            return ""
        if isinstance(hook, HttpHook):
            return await self._post(pid, hook.wake_port, hook.wake_path)
        return await self._signal(pid, hook, there=False)

    async def _first(self, uid: str) -> int:
        """The first process of the container whose processes use GPUs: its own PID 1. 0: there is none."""
        pod = self._cgroups.path(uid)
        if pod is None:
            return 0
        try:
            groups = host_memory.processes(pod).values()
        except HostMemoryUnknown:
            return 0
        using = set(await self._on_gpus(uid))
        found = [group for group in groups if using & set(group)] or list(groups)
        return min((pid for group in found for pid in group), key=lambda pid: (started(pid), pid), default=0)

    async def _post(self, pid: int, port: int, path: str) -> str:
        caller = await asyncio.create_subprocess_exec(
            sys.executable,
            hook_call.__file__,
            str(pid),
            str(port),
            path,
            str(ANSWER_S),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            out, _ = await asyncio.wait_for(caller.communicate(), ANSWER_S + 5)
        except TimeoutError:
            caller.kill()
            await caller.wait()
            return f"its server did not answer to POST :{port}{path} within {ANSWER_S:g} s"
        said = out.decode(errors="replace").strip()
        return "" if said.startswith("2") else f"its server answered to POST :{port}{path} with {said or 'nothing'}"

    async def _signal(self, pid: int, hook: SignalHook, *, there: bool) -> str:
        """Sends the signal unless the file is as it shall be, and waits until it is."""
        file = Path(f"/proc/{pid}/root{hook.file}")

        async def as_wanted() -> bool:
            return await self._files.call(lambda: os.path.lexists(file)) is there

        try:
            if await as_wanted():
                return ""
            os.kill(pid, signal.Signals[hook.signal])
            if await self._until(as_wanted):
                return ""
        except (OSError, Hung) as error:
            return f"its file {hook.file} or its process cannot be reached: {error}"
        state = "not there" if there else "still there"
        return f"its file {hook.file} is {state} {self._slept_s:g} s after {hook.signal}"

    async def _until(self, done: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> bool:
        clock = asyncio.get_running_loop().time
        until_s = clock() + self._slept_s
        while True:
            found = done()
            if found if isinstance(found, bool) else await found:
                return True
            if clock() >= until_s:
                return False
            await asyncio.sleep(LOOK_S)
