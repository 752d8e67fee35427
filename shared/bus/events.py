"""Public events onto KERF_EVENTS without waiting: acknowledged in the background, resent under the same id, counted.

The stream drops a second message of the same Nats-Msg-Id within two minutes, so resending is harmless.

One acknowledgement speaks for all events before it: the server takes a connection's messages in order, and a stream
that took one has taken those. So under load one in ACK_EVERY is asked for, and each when they come alone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING

import structlog

from shared.bus.connection import Connection

if TYPE_CHECKING:
    from nats.aio.msg import Msg

MAX_OUTSTANDING = 20_000
"""The limit of unacknowledged events. Beyond it new events are dropped and counted, so that memory stays bounded."""
RESEND_AFTER_S, RESEND_MOST_S = 3.0, 30.0
"""After the first attempt, and at most: each wait is twice as long as the one before it."""
MAX_ATTEMPTS = 24
"""About 10 minutes on a connection whose servers have no stream: an election, or a disk that is being replaced. What a
pod is billed for ends with an event."""
ACK_EVERY = 32

log = structlog.get_logger("bus")


class _Pending:
    __slots__ = ("attempts", "due", "headers", "payload", "subject")

    def __init__(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        self.subject = subject
        self.payload = payload
        self.headers = headers
        self.attempts = 0
        self.due = 0.0

    def sent(self, now: float) -> None:
        self.due = now + min(RESEND_MOST_S, RESEND_AFTER_S * (1 << self.attempts))
        self.attempts += 1


class EventPublisher:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._prefix = connection.route("e", self._acknowledged)
        self._numbers = itertools.count(1)
        self._outstanding: dict[str, _Pending] = {}
        self._queue: deque[str] = deque()
        self._unasked: list[str] = []
        self._speaks_for: dict[str, list[str]] = {}
        """By the token of an event whose acknowledgement was requested: the earlier events without a request."""
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._lost_logged = 0

    def start(self) -> None:
        self._connection.on_reconnect(self._reconnected)
        self._connection.spawn(self._drain())
        self._connection.spawn(self._sweep())

    async def _reconnected(self) -> None:
        # Events on the old connection may be lost: no acknowledgement on the new one covers them. The sweep asks for
        # each.
        self._unasked = []
        self._speaks_for.clear()

    def publish(self, subject: str, payload: bytes, event_id: str, traceparent: str) -> None:
        """See port.Bus.publish_event."""
        if len(self._outstanding) >= MAX_OUTSTANDING:
            self._lose(subject, f"{MAX_OUTSTANDING} events wait for the server")
            return
        headers = {"Nats-Msg-Id": event_id}
        if traceparent:
            headers["traceparent"] = traceparent
        token = format(next(self._numbers), "x")
        self._outstanding[token] = _Pending(subject, payload, headers)
        self._empty.clear()
        self._queue.append(token)
        self._wake.set()

    async def flushed(self, timeout_s: float) -> bool:
        """Waits until every event is acknowledged or lost; False if that took too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            log.error("bus_events_unacknowledged", events=len(self._outstanding))
            return False
        return True

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        stats = self._connection.stats
        while True:
            await self._wake.wait()
            self._wake.clear()
            now = loop.time()
            unasked = 0
            while self._queue:
                token = self._queue.popleft()
                pending = self._outstanding.get(token)
                if pending is None:
                    continue
                pending.sent(now)
                unasked += 1
                # A resent event gets an acknowledgement of its own.
                ask = not self._queue or unasked >= ACK_EVERY or pending.attempts > 1
                if ask:
                    unasked = 0
                    self._speaks_for[token] = self._unasked
                    self._unasked = []
                else:
                    self._unasked.append(token)
                try:
                    await self._connection.nc.publish(
                        pending.subject, pending.payload, self._prefix + token if ask else "", pending.headers
                    )
                except Exception as error:  # noqa: BLE001 - whatever it is, the next event must still go out; it is counted
                    self._failed(token, pending, repr(error))
                    continue
                stats.events_published += 1

    def _acknowledged(self, token: str, message: Msg) -> None:
        before = self._speaks_for.pop(token, [])
        pending = self._outstanding.get(token)
        if pending is None:
            return
        if b'"error"' in message.data or not message.data:
            # No stream listens (an election, a wiped store), or it could not take the event now: the sweep tries again.
            self._failed(token, pending, message.data[:200].decode("utf-8", "replace") or "no stream listens")
            return
        del self._outstanding[token]
        self._connection.stats.events_acknowledged += 1
        for earlier in before:
            if self._outstanding.pop(earlier, None) is not None:
                self._connection.stats.events_acknowledged += 1
        if not self._outstanding:
            self._empty.set()

    def _failed(self, token: str, pending: _Pending, why: str) -> None:
        if pending.attempts >= MAX_ATTEMPTS:
            self._outstanding.pop(token, None)
            self._speaks_for.pop(token, None)
            self._lose(pending.subject, why)
            if not self._outstanding:
                self._empty.set()

    def _lose(self, subject: str, why: str) -> None:
        stats = self._connection.stats
        stats.events_lost += 1
        if stats.events_lost >= 2 * self._lost_logged:  # the 1st, 2nd, 4th, 8th…: an outage must not flood the log
            self._lost_logged = stats.events_lost
            log.error("bus_event_lost", subject=subject, lost=stats.events_lost, why=why)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(RESEND_AFTER_S / 2)
            if not self._connection.connected:
                continue
            now = loop.time()
            for token, pending in list(self._outstanding.items()):
                if pending.due > now or pending.attempts == 0:
                    continue
                if pending.attempts >= MAX_ATTEMPTS:
                    self._failed(token, pending, "never acknowledged")
                    continue
                self._connection.stats.events_resent += 1
                pending.due = now + RESEND_AFTER_S  # until it is sent
                self._queue.append(token)
                self._wake.set()
