"""Runs blocking calls with a time limit, one at a time, in a thread that may hang without blocking the process.

The limit counts only the time in which the thread could go on (see `starvation`): an agent that gets little CPU is
slow, and its GPUs do not hang.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from services.node_agent.starvation import Clock, Look, counted_ns

T = TypeVar("T")

LOOKS = 20
"""So often a call is looked at within its time limit."""
MAX_LOOK_S = 0.25
STARVED_TIMES = 10
"""A call that has not returned after so many time limits by the clock is given up, however little CPU it got."""

log = structlog.get_logger("worker")


class Hung(Exception):
    """The call has not returned in time, or an earlier call has not returned yet."""


class _Call:
    """A call under way. `thread_id` is 0 until its thread runs."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future
        self.thread_id = 0
        self.hung = False
        """Whether its time limit has passed."""


class Worker:
    def __init__(self, timeout_s: float, clock: Clock | None = None) -> None:
        self._timeout_s = timeout_s
        self._clock = clock or Clock()
        self._running: _Call | None = None

    async def call(self, function: Callable[[], T]) -> T:
        """Returns or raises what the function does. Raises Hung if it takes longer than the time limit.

        A hung thread is left behind. No other call is made until it has returned. A call whose caller was cancelled has
        as much time again: it is no sign of a hang that another call comes meanwhile.
        """
        earlier = self._running
        if earlier is not None and not earlier.future.done():
            if earlier.hung:
                raise Hung(f"an earlier call has not returned for more than {self._timeout_s:g} s")
            await self._wait(earlier)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        call = self._running = _Call(future)
        # A daemon thread, because an executor's threads are joined at exit and a call into a wedged driver never ends.
        threading.Thread(target=_run, args=(function, loop, call), name="nvml", daemon=True).start()
        await self._wait(call)
        return future.result()

    async def _wait(self, call: _Call) -> None:
        """Returns when the call has. Raises Hung at the end of the time limit."""
        interval_s = min(self._timeout_s / LOOKS, MAX_LOOK_S)
        began_s, counted_s = time.monotonic(), 0.0
        before = self._look(call)
        while True:
            done, _ = await asyncio.wait({call.future}, timeout=interval_s)
            if done:
                break
            now = self._look(call)
            if now is not None:
                begun = before or Look(now.at_ns)
                counted_s += counted_ns(begun, now, round(interval_s * 1e9)) / 1e9
            before, passed_s = now, time.monotonic() - began_s
            call.hung = counted_s >= self._timeout_s or passed_s >= STARVED_TIMES * self._timeout_s
            if counted_s >= self._timeout_s:
                raise Hung(f"no answer within {self._timeout_s:g} s")
            if passed_s >= STARVED_TIMES * self._timeout_s:
                raise Hung(
                    f"no answer within {passed_s:.0f} s, in which this agent waited {passed_s - counted_s:.0f} s for a "
                    "CPU: raise the CPU request and limit of the node agent"
                )
        passed_s = time.monotonic() - began_s
        if passed_s > self._timeout_s:
            log.warning(
                "agent_starved",
                seconds=round(passed_s, 1),
                waited_for_cpu_s=round(max(0.0, passed_s - counted_s), 1),
                advice="raise the CPU request and limit of the node agent",
            )

    def _look(self, call: _Call) -> Look | None:
        """None until the thread runs."""
        return self._clock.look(call.thread_id, threading.get_native_id()) if call.thread_id else None


def _run(function: Callable[[], T], loop: asyncio.AbstractEventLoop, call: _Call) -> None:
    call.thread_id = threading.get_native_id()
    future = call.future
    try:
        result = function()
    except Exception as error:  # noqa: BLE001 - passed on to the caller
        _settle(loop, future, lambda error=error: future.set_exception(error))  # type: ignore[misc]
    else:
        _settle(loop, future, lambda: future.set_result(result))


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], settle: Callable[[], None]) -> None:
    def unless_done() -> None:
        if not future.done():
            settle()
            future.exception()  # marks it as retrieved: after a time-out nothing awaits it

    if not loop.is_closed():
        loop.call_soon_threadsafe(unless_done)
