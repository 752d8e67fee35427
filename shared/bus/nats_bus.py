"""port.Bus on NATS: one connection, and the parts that speak over it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from shared.bus import parts
from shared.bus.connection import Connection, Stats
from shared.bus.events import EventPublisher
from shared.bus.follow import Follower
from shared.bus.jetstream import JetStream
from shared.bus.kv import NatsKv
from shared.bus.log_stream import LogStream
from shared.bus.mark import Mark
from shared.bus.port import BusError, Handler, Incoming, LogEntry, Subscription
from shared.bus.provision import begin_log_anew
from shared.bus.subscriptions import CoreSubscription
from shared.bus.watch import KvWatch
from shared.contracts import subjects
from shared.trusted_file import TrustedFile

RESYNC_S = 30.0

log = structlog.get_logger("bus")


def _trusting(ca_file: str, ca_data: str) -> ssl.SSLContext | None:
    """None without a CA. Raises BusError for one that cannot be used."""
    if not ca_file and not ca_data:
        return None
    try:
        # Between certificates may be text, and data with other letters than ASCII's is refused.
        return ssl.create_default_context(
            cafile=ca_file or None, cadata=ca_data.encode("ascii", "ignore").decode() or None
        )
    except OSError as error:
        raise BusError(f"the CA of the NATS servers, {ca_file or 'as given'}, cannot be used: {error}") from error


def _ca_unreadable(file: str, error: OSError) -> None:
    log.error("nats_ca_unreadable", file=file, error=str(error), kept="the CAs that were read before")


def _token_of(file: Path) -> Callable[[], str]:
    def read() -> str:
        try:
            return file.read_text().strip()
        except OSError as error:
            log.error("nats_token_unreadable", file=str(file), error=str(error))
            return ""  # the server refuses it, and the next attempt reads again

    return read


class NatsBus:
    """See port.Bus for what each method promises. Made by `connect`, ended by `drain` (in order) or `close`."""

    def __init__(self, connection: Connection, *, resync_s: float = RESYNC_S) -> None:
        self._connection = connection
        self.js = JetStream(connection)
        self._log = LogStream(self.js)
        self._mark = Mark(self.js)
        self._events = EventPublisher(connection)
        self._events.start()
        self._resync_s = resync_s
        self._subscriptions: list[CoreSubscription] = []
        self._watches: dict[int, KvWatch | Follower] = {}
        connection.on_reconnect(self._wake_watches)

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        name: str = "kerf",
        credentials: str = "",
        token_file: str = "",
        ca_file: str = "",
        ca_data: str = "",
        timeout_s: float = 30.0,
        resync_s: float = RESYNC_S,
        inbox_prefix: str = "_INBOX",
        on_closed: Callable[[str], None] | None = None,
    ) -> NatsBus:
        """Connects to `url` (several, separated by commas, for a cluster; may contain user and password).

        `credentials` is the path of a NATS .creds file, `token_file` of a token that identifies us, `ca_file` of the
        CAs for TLS (`ca_data`: the same in PEM). Token and CAs are read anew at each connection. `on_closed` is called
        with the reason when the client closes for good by itself: the process should end then. Raises BusError with
        the reason.
        """
        tls = _trusting(ca_file, ca_data)
        connection = Connection(on_closed=on_closed, inbox_prefix=inbox_prefix)
        if tls is not None and ca_file:
            connection.before_attempt(TrustedFile(tls, ca_file, partial(_ca_unreadable, ca_file)).read)
        token = _token_of(Path(token_file)) if token_file else None
        await connection.open(url, name=name, credentials=credentials, token=token, tls=tls, timeout_s=timeout_s)
        return cls(connection, resync_s=resync_s)

    async def __aenter__(self) -> NatsBus:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain()

    @property
    def stats(self) -> Stats:
        return self._connection.stats

    @property
    def connected(self) -> bool:
        return self._connection.connected

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        self._connection.on_reconnect(callback)

    async def alive(self, *, timeout_s: float = 2.0) -> bool:
        return await self._connection.round_trip(timeout_s)

    def server(self) -> dict[str, Any]:
        """What the server said of itself when it accepted the connection: server_name, version, tls_required, ..."""
        return self._connection.server()

    def peer_certificate(self) -> bytes:
        """The server's certificate (DER); empty without TLS."""
        return self._connection.peer_certificate()

    # --- core ---------------------------------------------------------------------------------------------------

    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        await self._connection.publish(subject, payload, reply=reply, headers=headers)

    async def publish_in_parts(self, subject: str, payload: bytes) -> None:
        await self._connection.publish_in_parts(subject, payload)

    async def request(self, subject: str, payload: bytes, *, timeout_s: float = 2.0) -> bytes:
        answer = await self._connection.request(subject, payload, timeout_s=timeout_s, headers=parts.ACCEPT_PARTS)
        return answer.data

    async def survey(
        self, subject: str, payload: bytes, *, within_s: float, enough: Callable[[list[bytes]], bool] = lambda _: False
    ) -> list[bytes]:
        answers: list[bytes] = []
        complete = asyncio.Event()

        async def take(incoming: Incoming) -> None:
            if incoming.payload:  # without: the server's answer that there is no responder
                answers.append(incoming.payload)
                if enough(answers):
                    complete.set()

        inbox = self._connection.new_inbox()
        subscription = await self.subscribe(inbox, take)
        try:
            await self._connection.publish(subject, payload, reply=inbox)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await complete.wait()
            if self._connection.take_denied_publish(subject):
                raise BusError(f"not permitted to publish to {subject}; check the user's permissions")
        finally:
            await subscription.stop()
        return answers

    async def respond(self, incoming: Incoming, payload: bytes) -> None:
        if subjects.is_no_inbox(incoming.reply):
            # NATS checks what its sender may publish to, and not this: the answer would go there with our rights.
            log.warning("answer_not_sent", asked=incoming.subject, reply=incoming.reply)
        elif incoming.reply:
            await self._connection.answer(incoming.reply, payload, accepts_parts=parts.accepted(incoming.headers))

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "", concurrency: int = 1) -> Subscription:
        subscription = CoreSubscription(self._connection, subject, handler, concurrency, self._forget)
        self._subscriptions.append(subscription)
        await subscription.start(queue)
        return subscription

    def _forget(self, subscription: CoreSubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def publish_event(self, subject: str, payload: bytes, event_id: str, *, traceparent: str = "") -> None:
        self._events.publish(subject, payload, event_id, traceparent)

    async def follow_events(
        self, handler: Callable[[LogEntry], Awaitable[None]], *, start: int = 1, stream: str = ""
    ) -> Subscription:
        follower = Follower(self.js, subjects.STREAM_EVENTS, handler, start=start, created=stream)
        self._keep(follower)
        return follower

    # --- the log ------------------------------------------------------------------------------------------------

    async def append(
        self, subject: str, payload: bytes, *, fence_subject: str, fence_sequence: int, last_sequence: int | None = None
    ) -> int:
        return await self._log.append(
            subject, payload, fence_subject=fence_subject, fence_sequence=fence_sequence, last_sequence=last_sequence
        )

    def read_log(self, *, start: int = 1) -> AsyncIterator[LogEntry]:
        return self._log.read(start)

    async def log_end(self) -> int:
        return await self._log.end()

    async def newest(self, subject: str) -> LogEntry | None:
        return await self._log.newest(subject)

    async def read_mark(self) -> tuple[bytes | None, int]:
        return await self._mark.read()

    async def write_mark(self, value: bytes, revision: int) -> int:
        return await self._mark.write(value, revision)

    async def begin_log_anew(self, first_sequence: int) -> None:
        await begin_log_anew(self.js, first_sequence)

    # --- buckets ------------------------------------------------------------------------------------------------

    def kv(self, bucket: str) -> NatsKv:
        return NatsKv(self.js, bucket, resync_s=self._resync_s, keep=self._keep)

    def _keep(self, watch: KvWatch | Follower) -> None:
        """It is told of new connections until it is stopped. What it tells (a leader's session, with its whole book) is
        held by it no longer than that."""
        self._watches[id(watch)] = watch
        watch.on_stop = partial(self._unkeep, id(watch))

    def _unkeep(self, watch_id: int) -> None:
        self._watches.pop(watch_id, None)

    async def _wake_watches(self) -> None:
        for watch in tuple(self._watches.values()):
            watch.wake()

    # --- the end ------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Stops receiving, finishes received messages, sends published ones, closes. Takes about 15 s at most."""
        for watch in tuple(self._watches.values()):
            await watch.stop()
        if self._subscriptions:
            await asyncio.gather(*(subscription.stop() for subscription in tuple(self._subscriptions)))
        if self._connection.connected:
            await self._events.flushed(2.0)
        await self._connection.close()

    async def close(self) -> None:
        """Closes at once; what is running is cancelled."""
        for watch in tuple(self._watches.values()):
            await watch.stop()
        await self._connection.close()
