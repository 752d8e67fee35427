"""Handlers of core subscriptions: one at a time or a bounded number at once, failures logged and counted, bounded
drain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import nats.errors
import structlog

from shared.bus.connection import Connection
from shared.bus.port import BusError, Handler, Incoming
from shared.bus.tasks import end

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription as NatsSubscription

DRAIN_S = 5.0
"""A handler that hangs must not hold the whole shutdown (fault 11): after this long it is cancelled."""

log = structlog.get_logger("bus")


class CoreSubscription:
    """One subscription and its running handlers."""

    def __init__(
        self,
        connection: Connection,
        subject: str,
        handler: Handler,
        concurrency: int,
        forget: Callable[[CoreSubscription], None],
    ) -> None:
        self._connection = connection
        self._subject = subject
        self._handler = handler
        self._slots = asyncio.Semaphore(concurrency)
        self._serial = concurrency == 1
        self._running: set[asyncio.Task[None]] = set()
        self._forget = forget
        self._sub: NatsSubscription | None = None

    async def start(self, queue: str) -> None:
        """Subscribes and waits until the server knows it. Raises BusError where the server denies it."""
        connection = self._connection
        try:
            self._sub = await connection.nc.subscribe(self._subject, queue=queue, cb=self._receive)
        except (nats.errors.Error, ValueError) as error:
            self._forget(self)
            raise BusError(f"cannot subscribe to {self._subject}: {error or type(error).__name__}") from error
        try:
            await connection.settle()
            if connection.take_denied_subscription(self._subject):
                raise BusError(
                    f"not permitted to subscribe to {self._subject}; check the user's permissions in the NATS "
                    "configuration"
                )
        except BaseException:  # a cancellation, too: nothing has a reference to stop it by
            await self.stop()
            raise

    async def _receive(self, message: Msg) -> None:
        incoming = Incoming(
            subject=message.subject, payload=message.data, reply=message.reply, headers=message.headers or {}
        )
        if self._serial:
            await self._handle(incoming)
            return
        await self._slots.acquire()
        task = asyncio.create_task(self._handle(incoming))
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.release()

    async def _handle(self, incoming: Incoming) -> None:
        try:
            await self._handler(incoming)
        except Exception as error:
            self._connection.stats.handler_failures += 1
            log.error("bus_handler_failed", subject=incoming.subject, error=repr(error), exc_info=error)

    async def stop(self) -> None:
        """No new messages; those received are handled, for at most DRAIN_S. Not to be awaited from its own handler."""
        sub, self._sub = self._sub, None
        self._forget(self)
        if sub is not None:
            await self._remove(sub)
        if self._running:
            _, hanging = await asyncio.wait(self._running, timeout=DRAIN_S)
            if hanging:
                await end(*hanging, within_s=1)
                log.error("bus_handlers_cancelled", subject=self._subject, handlers=len(hanging))

    async def _remove(self, sub: NatsSubscription) -> None:
        """As nats-py's drain, which is not used: where it is cancelled, or gets no answer, the next connection has the
        subscription again, and the read loop ends by the late answer to its ping (faults 4 and 20)."""
        client, reconnects = self._connection.nc, self._connection.stats.reconnects
        try:
            if self._connection.connected:
                await self._in_time(self._drain(sub))
        finally:
            client._subs.pop(sub._id, None)
            sub._closed = True
            sub._stop_processing()
            if self._connection.stats.reconnects != reconnects:
                # The new server has it, and would go on to give it messages: of a queue, in place of another member.
                await self._in_time(client._send_unsubscribe(sub._id))

    async def _drain(self, sub: NatsSubscription) -> None:
        await self._connection.nc._send_unsubscribe(sub._id)
        if await self._connection.settle(DRAIN_S):
            await sub._pending_queue.join()

    async def _in_time(self, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(DRAIN_S):
                await work
        except TimeoutError:
            log.error("bus_drain_timed_out", subject=self._subject, seconds=DRAIN_S)
        except nats.errors.Error as error:
            log.warning("bus_drain_failed", subject=self._subject, error=str(error) or type(error).__name__)
