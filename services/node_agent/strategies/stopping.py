"""Brings all processes of a pod to a stop together, so that none waits in a collective for one that is stopped.

A kernel of a collective ends only when those of all its processes have begun. A process whose kernel waits for one that
another process has not launched yet never gets quiet, and the driver's lock waits for that until its time is over. So
all processes are stopped together, and if one does not get quiet in time, those that are locked go on for a moment, and
all are stopped again at another one.

Programs launch far ahead of their GPU, each as far as it likes: then hardly any moment is a good one. So between two
attempts they run *in step*: no process has more than a fraction of a millisecond of work submitted, and so none is
further ahead of the others than a single collective. What is left to chance is a stop between two launches of the same
collective.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from services.node_agent.strategies.lock_pool import LockPool
from services.node_agent.strategies.lock_worker import LOCKED
from services.node_agent.strategies.locks import LockError, NoAnswer


class Attempt(msgspec.Struct, frozen=True):
    run_s: float
    """Before it, the pod runs in step for about so long."""
    quiet_s: float
    """Its processes have so long to get quiet."""


ATTEMPTS = (
    Attempt(0.0, 0.5),
    Attempt(0.05, 0.5),
    Attempt(0.1, 1.0),
    Attempt(0.2, 1.0),
    Attempt(0.4, 2.0),
    Attempt(0.8, 2.0),
)
"""The first ones are short, because a pod that cannot get quiet stands still meanwhile; the last ones wait for kernels
of two seconds. All together take less than nine seconds; at worst twice as long, if each fails after it has settled."""
SETTLE_S = 0.25
"""When their work is complete they may call the driver for so long, while no launch begins: a thread that looks each
100 ms whether work is complete, as NCCL's watchdog in PyTorch, has then seen it, and asks no more while they are
stopped."""
LEAST_LOCK_S = 0.05
"""The last process to be locked has at least this long."""


class NotQuiet(LockError):
    """The processes could not be stopped together. All of them run."""


class Gate(Protocol):
    """Holds the launches of the pod's slices. Each method may raise OSError, ValueError or KeyError."""

    def hold(self) -> None:
        """No new launch begins."""

    def settle(self) -> None:
        """No new launch begins, and questions whether work is complete are answered by the driver."""

    def run_in_step(self) -> None:
        """Launches begin, each when those before it are done."""


class OpenGate:
    """For processes that have no interposer: the driver's lock alone stops them."""

    def hold(self) -> None:
        """Nothing."""

    def settle(self) -> None:
        """Nothing."""

    def run_in_step(self) -> None:
        """Nothing."""


class Stopper:
    def __init__(
        self,
        locks: LockPool,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sleep` and `clock` go by the clock by which the driver bounds its locks; both in seconds."""
        self._locks, self._sleep, self._clock = locks, sleep, clock

    async def stop(
        self,
        processes: Callable[[], Awaitable[tuple[int, ...]]],
        gate: Gate,
        attempts: tuple[Attempt, ...] = ATTEMPTS,
    ) -> tuple[int, ...]:
        """Locks all of these processes, and returns them; those that were locked before stay so.

        Raises NotQuiet or another LockError, and what `gate` and `processes` raise; then none is locked that was not
        before.
        """
        why = "it was not tried"
        for attempt in attempts:
            if attempt.run_s:
                gate.run_in_step()
                # Not always the same time: a program has a period of its own.
                await self._sleep(attempt.run_s * random.uniform(0.75, 1.25))  # noqa: S311 - nothing secret
            gate.hold()
            found = await processes()
            locked: list[int] = []
            try:
                why = await self._lock_all(found, attempt.quiet_s, locked)
                if locked and not why and not isinstance(gate, OpenGate):
                    gate.settle()
                    await self.let_go(locked)
                    locked.clear()
                    await self._sleep(SETTLE_S)
                    gate.hold()
                    found = await processes()
                    why = await self._lock_all(found, attempt.quiet_s, locked)
            except (LockError, OSError, ValueError, KeyError, asyncio.CancelledError):  # also those of the gate
                await self.let_go(locked)
                raise
            if not why:
                return found
            await self.let_go(locked)
        raise NotQuiet(f"its processes could not be stopped together in {len(attempts)} attempts: {why}")

    async def let_go(self, pids: list[int] | tuple[int, ...]) -> None:
        """Unlocks these processes as far as they are locked by `stop`. Raises LockError after it has tried all."""
        errors = []
        for pid in pids:
            try:
                await self._locks.unlock(pid)
            except LockError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def _lock_all(self, pids: tuple[int, ...], within_s: float, locked: list[int]) -> str:
        """Returns why not all are locked; empty if they are. Those that it has locked are in `locked`."""
        until_s = self._clock() + within_s
        for pid in pids:
            if pid in self._locks.held or await self._locks.state(pid) == LOCKED:
                continue
            try:
                await self._locks.lock(pid, within_ms=round(max(LEAST_LOCK_S, until_s - self._clock()) * 1000))
            except NoAnswer:
                raise  # the driver hangs: it is not asked again and again
            except LockError as error:
                if await self._locks.state(pid) is None:
                    continue  # it has ended meanwhile
                return str(error)
            locked.append(pid)
        return ""
