"""Runs blocking calls with a time limit, one at a time, in a thread that may hang without blocking the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Hung(Exception):
    """The call has not returned in time, or an earlier call has not returned yet."""


class Worker:
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._running: asyncio.Future[Any] | None = None

    async def call(self, function: Callable[[], T]) -> T:
        """Returns or raises what the function does. Raises Hung if it takes longer than the time limit.

        A hung thread is left behind. No other call is made until it has returned.
        """
        if self._running is not None and not self._running.done():
            raise Hung(f"an earlier call has not returned for more than {self._timeout_s:g} s")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._running = future
        # A daemon thread, because an executor's threads are joined at exit and a call into a wedged driver never ends.
        threading.Thread(target=_run, args=(function, loop, future), name="nvml", daemon=True).start()
        try:
            return await asyncio.wait_for(asyncio.shield(future), self._timeout_s)
        except TimeoutError:
            raise Hung(f"no answer within {self._timeout_s:g} s") from None


def _run(function: Callable[[], T], loop: asyncio.AbstractEventLoop, future: asyncio.Future[T]) -> None:
    try:
        result = function()
    except Exception as error:  # noqa: BLE001 - passed on to the caller
        _settle(loop, future, lambda error=error: future.set_exception(error))  # type: ignore[misc]
    else:
        _settle(loop, future, lambda: future.set_result(result))


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], settle: Callable[[], None]) -> None:
    def unless_done() -> None:
        if not future.done():
            settle()
            future.exception()  # marks it as retrieved: after a time-out nothing awaits it

    if not loop.is_closed():
        loop.call_soon_threadsafe(unless_done)
