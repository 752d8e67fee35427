"""One connection to NATS. Corrects defaults of nats-py that Kerf cannot accept.

The numbers are those of the fault list in the decision record on nats-py: 3 (a time-out means unknown), 4 (error
callbacks never raise, liveness is a round trip), 5 (pings every 2 s), 8 (replies echo no headers), 9 (endless
reconnects; the owner is notified when the client closes for good or stops connecting), 13 (callers' headers are never
modified).
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import nats.errors
import structlog

from shared.bus import parts
from shared.bus.client import RECONNECT_WAIT_S, Client, identity
from shared.bus.outage import Outage
from shared.bus.port import AnswerFailed, BusError, NoResponder, NotConnected, NotTaken, Unknown
from shared.bus.tasks import end
from shared.bus.transport import ANSWER_S
from shared.redaction import redact

if TYPE_CHECKING:
    import ssl

    from nats.aio.msg import Msg

PING_INTERVAL_S = 2
MAX_OUTSTANDING_PINGS = 2
REPLACED_S = 2.0
"""Requests from before a reconnection are given up so long after it: the answer comes soon, or it or the request was
lost with the old connection."""
STOPPED_S = 60.0
"""A client that has lost its connection and does not connect for so long never will. An attempt takes up to 12 s."""
PENDING_BYTES = 8 * 1024 * 1024
"""How much may wait in memory while the server is away. More is refused."""

_DENIED = re.compile(r"Permissions Violation for (Publish|Subscription)(?: to)? \"?([^\"\s]+)\"?", re.IGNORECASE)
_NO_RESPONDERS = "503"

log = structlog.get_logger("bus")


class Stats:
    """Counters for the metrics endpoint."""

    def __init__(self) -> None:
        self.reconnects = 0
        self.errors = 0
        self.denied = 0
        self.slow_consumer_drops = 0
        self.handler_failures = 0
        self.timeouts = 0
        self.events_published = 0
        self.events_acknowledged = 0
        self.events_resent = 0
        self.events_lost = 0
        self.events_missed = 0
        self.watch_restarts = 0


class _Waiting:
    """A request whose answer has not come, or not all of it."""

    __slots__ = ("arrived_s", "future", "parts", "subject")

    def __init__(self, future: asyncio.Future[Msg], subject: str) -> None:
        self.future, self.subject = future, subject
        self.parts: parts.Joiner | None = None
        self.arrived_s = 0.0
        """When the newest part came, by the event loop's clock."""


class Connection:
    """The client, a reply inbox shared by all requests, and the client's life-cycle callbacks."""

    def __init__(self, *, on_closed: Callable[[str], None] | None = None, inbox_prefix: str = "_INBOX") -> None:
        self.nc = Client()
        self.stats = Stats()
        self._on_closed = on_closed
        self._prefix = f"{inbox_prefix}.{secrets.token_hex(9)}"
        self._tokens = itertools.count(1)
        self._waiting: dict[str, _Waiting] = {}
        self._routes: dict[str, Callable[[str, Msg], None]] = {}
        self._up = asyncio.Event()
        self._closing = False
        self._over = False
        """The client closed for good by itself."""
        self._denied_subscriptions: set[str] = set()
        self._denied_publishes: set[str] = set()
        self._reconnect_callbacks: list[Callable[[], Awaitable[None]]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._probe: asyncio.Task[float] | None = None
        self._refusal: asyncio.Future[str] | None = None
        self._outage = Outage()
        self._waits_out_refusals = False

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(
        self,
        url: str,
        *,
        name: str,
        credentials: str = "",
        token: Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Connects, waiting up to `timeout_s` for a server. Raises BusError with the reason if none accepts the
        connection.

        `token` is called at each connection. A refusal of it is waited out too: what reviews tokens may not be up.
        """
        self._refusal = asyncio.get_running_loop().create_future()
        self._waits_out_refusals = token is not None
        options: dict[str, Any] = {"user_credentials": credentials} if credentials else {}
        servers = [part.strip() for part in url.split(",")]
        options |= identity(servers)
        if token is not None:
            options["token"] = token
        if tls is not None:
            options["tls"] = tls
        connecting = asyncio.create_task(
            self.nc.connect(
                servers=servers,
                name=name,
                allow_reconnect=True,
                max_reconnect_attempts=-1,
                connect_timeout=ANSWER_S,  # type: ignore[arg-type]  # only ever waited for
                reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # only ever slept on; a fraction is fine
                ping_interval=PING_INTERVAL_S,
                max_outstanding_pings=MAX_OUTSTANDING_PINGS,
                pending_size=PENDING_BYTES,
                flush_timeout=2,
                drain_timeout=5,
                error_cb=self._error_cb,
                disconnected_cb=self._disconnected_cb,
                reconnected_cb=self._reconnected_cb,
                closed_cb=self._closed_cb,
                **options,
            )
        )
        either: set[asyncio.Future[Any]] = {connecting, self._refusal}
        done, _ = await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        where = redact(url)
        if connecting not in done:
            await end(connecting)
            why = (
                self._refusal.result()
                if self._refusal in done
                else f"no server answered within {timeout_s:.0f} s ({self.nc.last_error})"
            )
            await self._shut()
            raise BusError(f"cannot connect to NATS at {where}: {why}")
        error = connecting.exception()
        if error is not None:
            raise BusError(f"cannot connect to NATS at {where}: {error}") from error
        self._refusal = None
        self._up.set()
        self._outage_over()
        await self.nc.subscribe(f"{self._prefix}.>", cb=self._on_reply)
        self.spawn(self._notice_a_stop())

    async def close(self) -> None:
        """Closes for good. Messages published before are sent first, within 2 s."""
        self._closing = True
        if self.nc.is_connected:
            await self.round_trip(2.0)
        await self._shut()
        if not await end(*self._tasks, within_s=2):
            log.error("bus_tasks_hang", tasks=len(self._tasks))
        for waiting in self._waiting.values():
            if not waiting.future.done():
                waiting.future.set_exception(Unknown(f"the connection was closed while {waiting.subject} was asked"))

    async def _shut(self) -> None:
        self._closing = True
        try:
            async with asyncio.timeout(5):
                await self.nc.close()
        except (TimeoutError, nats.errors.Error, OSError) as error:
            log.warning("bus_close_failed", error=str(error))

    def spawn(self, work: Awaitable[Any]) -> None:
        """Runs a background task, which close() cancels. The task handles its own errors."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        self._reconnect_callbacks.append(callback)

    def before_attempt(self, callback: Callable[[], None]) -> None:
        """Called before each attempt to connect. The callback does not raise."""
        self.nc.before_attempt = callback

    @property
    def connected(self) -> bool:
        return self._up.is_set() and self.nc.is_connected

    @property
    def clustered(self) -> bool:
        """Whether the server that it is connected to is one of a cluster, and so can replicate streams."""
        return bool(self.nc._server_info.get("cluster"))  # nats-py shows it nowhere else

    @property
    def closing(self) -> bool:
        return self._closing

    async def wait_connected(self, timeout_s: float) -> bool:
        if self.connected:
            return True
        if not self.nc.is_connected:
            self._up.clear()  # nats-py has noticed, and its callback has not come yet
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            return False
        return True

    # --- callbacks: none of them may raise, or nats-py's read loop dies silently (fault 4) ----------------------------

    async def _error_cb(self, error: Exception) -> None:
        try:
            self._note_error(error)
        except Exception as inner:  # noqa: BLE001 - see above: whatever it is, it must not reach nats-py
            log.error("bus_error_callback_failed", error=repr(inner), about=repr(error))

    def _note_error(self, error: Exception) -> None:
        self.stats.errors += 1
        if isinstance(error, nats.errors.SlowConsumerError):
            self.stats.slow_consumer_drops += 1
            if self.stats.slow_consumer_drops & (self.stats.slow_consumer_drops - 1) == 0:  # the 1st, 2nd, 4th, 8th…
                log.error("bus_slow_consumer", subject=error.subject, dropped=self.stats.slow_consumer_drops)
            return
        text = str(error)
        denied = _DENIED.search(text)
        if denied is not None:
            self._note_denied(denied[1].lower(), denied[2].lower())
            return
        if "authorization" in text.lower() or "authentication" in text.lower():
            self.nc.wait_longer()
        refused = "authorization" in text.lower() and not self._waits_out_refusals
        if refused and self._refusal is not None and not self._refusal.done():
            self._refusal.set_result(text)
        if self._closing:
            return
        said = redact(text or repr(error))
        up = self._up.is_set()
        if up and not isinstance(error, nats.errors.UnexpectedEOF | nats.errors.StaleConnectionError | OSError):
            log.warning("bus_error", error=said)
            return
        now = asyncio.get_running_loop().time()
        if self._outage.begin(now):
            log.warning("bus_disconnected" if up else "bus_unreachable", error=said)
        elif self._outage.error(now):
            log.warning(
                "bus_still_unreachable", error=said, errors=self._outage.errors, seconds=self._outage.seconds(now)
            )

    def _note_denied(self, verb: str, subject: str) -> None:
        """nats-py lower-cases the server's errors, so subjects are compared in lower case."""
        self.stats.denied += 1
        log.error("bus_permission_denied", verb=verb, subject=subject)
        if verb == "subscription":
            self._denied_subscriptions.add(subject)
            return
        self._denied_publishes.add(subject)
        for waiting in self._waiting.values():
            if waiting.subject.lower() == subject and not waiting.future.done():
                waiting.future.set_exception(
                    BusError(
                        f"not permitted to publish to {waiting.subject}; check the user's permissions in the NATS "
                        "configuration"
                    )
                )

    async def _disconnected_cb(self) -> None:
        self._up.clear()
        if not self._closing and self._outage.begin(asyncio.get_running_loop().time()):
            log.warning("bus_disconnected")

    async def _reconnected_cb(self) -> None:
        self.stats.reconnects += 1
        if self._probe is not None and not self._probe.done():
            self._probe.cancel()  # its ping went down with the old connection; here nothing will answer it late
        self._probe = None
        self._up.set()
        self._outage_over()
        loop = asyncio.get_running_loop()
        loop.call_later(REPLACED_S, self._give_up, tuple(self._waiting.values()), loop.time())
        self.spawn(self._run_reconnect_callbacks())

    def _outage_over(self) -> None:
        self.nc.wait_as_usual()
        if self._outage.going_on:
            seconds = self._outage.seconds(asyncio.get_running_loop().time())
            log.info("bus_reconnected", reconnects=self.stats.reconnects, errors=self._outage.errors, seconds=seconds)
            self._outage.end()

    async def _run_reconnect_callbacks(self) -> None:
        for callback in tuple(self._reconnect_callbacks):
            try:
                await callback()
            except Exception as error:
                self.stats.handler_failures += 1
                log.error("bus_reconnect_callback_failed", error=repr(error), exc_info=error)

    async def _closed_cb(self) -> None:
        self._up.clear()
        if self._closing or self._refusal is not None:
            return
        self._report_closed(f"the NATS client closed for good: {self.nc.last_error}")

    async def _notice_a_stop(self) -> None:
        """Whatever keeps nats-py from connecting again, a fault of its own included."""
        parts_of_it = 6  # a process that was frozen for long misses one of them, not all
        idle, seen = 0, -1
        while idle < parts_of_it:
            await asyncio.sleep(STOPPED_S / parts_of_it)
            idle = idle + 1 if not self.connected and self.nc.attempts == seen else 0
            seen = self.nc.attempts
        self._report_closed(f"the NATS client has not tried to connect for {STOPPED_S:.0f} s: {self.nc.last_error}")

    def _report_closed(self, reason: str) -> None:
        if self._over:
            return
        self._over = True
        log.error("bus_closed", reason=reason)
        if self._on_closed is not None:
            self._on_closed(reason)

    # --- talking ------------------------------------------------------------------------------------------------

    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Passes a message to the client, which keeps it over a short disconnection. Raises BusError if it cannot,
        NotTaken where another time it may."""
        size = len(payload) + parts.header_bytes(headers)
        if headers and size > self.nc.max_payload:  # nats-py counts the payload alone, and the server would hang up
            raise BusError(f"cannot publish {size} bytes to {subject}: a message has at most {self.nc.max_payload}")
        try:
            await self.nc.publish(subject, payload, reply, None if headers is None else dict(headers))
        except (nats.errors.Error, ValueError) as error:
            kind = NotTaken if isinstance(error, nats.errors.OutboundBufferLimitError) else BusError
            raise kind(f"cannot publish {len(payload)} bytes to {subject}: {error or type(error).__name__}") from error

    async def answer(self, subject: str, payload: bytes, *, accepts_parts: bool) -> None:
        """Sends an answer: in one message, in parts where it is larger and the asker reads them, or else the reason why
        it is not sent. Raises BusError if nothing can be sent."""
        max_payload = self.nc.max_payload
        why = parts.refusal(len(payload), max_payload, parts=accepts_parts)
        if why:
            log.error("bus_answer_not_sent", bytes=len(payload), max_bytes=max_payload, why=why)
            body, headers = parts.error_message(why)
            await self.publish(subject, body, headers=headers)
            return
        await self.publish_in_parts(subject, payload)

    async def publish_in_parts(self, subject: str, payload: bytes) -> None:
        """Publishes one message, or its parts where it is larger than the server takes. Raises as `publish`."""
        if len(payload) <= self.nc.max_payload:
            await self.publish(subject, payload)
            return
        for body, headers in parts.split(payload, self.nc.max_payload, secrets.token_hex(4)):
            await self.publish(subject, body, headers=headers)
            await asyncio.sleep(0)

    async def request(
        self, subject: str, payload: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Msg:
        """Sends a request and returns the answer.

        `timeout_s` is the time until the answer, and between two parts of it. Raises NotConnected (nothing was sent),
        NoResponder (no subscriber), Unknown (no answer in time: the request may have been acted on, or may yet be),
        AnswerFailed (the answer could not be sent, or not all of it arrived), BusError (not permitted, too large).
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if not self.connected and not await self.wait_connected(timeout_s):
            raise NotConnected(f"no connection to NATS within {timeout_s:.1f} s; {subject} was not asked")
        token = format(next(self._tokens), "x")
        future: asyncio.Future[Msg] = loop.create_future()
        waiting = self._waiting[token] = _Waiting(future, subject)
        timer = loop.call_at(deadline, self._expire, waiting, timeout_s)
        try:
            await self.publish(subject, payload, reply=f"{self._prefix}.{token}", headers=headers)
            message = await future
        finally:
            timer.cancel()
            del self._waiting[token]
            if future.done() and not future.cancelled():
                future.exception()  # retrieved, so that a publish that failed first leaves no warning behind
        if not message.data and message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            raise NoResponder(f"no subscriber on {subject}")
        return message

    def _expire(self, waiting: _Waiting, timeout_s: float) -> None:
        if waiting.future.done():
            return
        until = waiting.arrived_s + timeout_s
        loop = asyncio.get_running_loop()
        if until > loop.time():
            loop.call_at(until, self._expire, waiting, timeout_s)
            return
        self._fail(waiting, f"within {timeout_s:.1f} s", f"nothing for {timeout_s:.1f} s")

    def _give_up(self, older: tuple[_Waiting, ...], reconnected_s: float) -> None:
        """`older`: what waited for an answer when the connection was replaced."""
        for waiting in older:
            if not waiting.future.done() and waiting.arrived_s < reconnected_s:
                within = f"within {REPLACED_S:.1f} s of a new connection"
                self._fail(waiting, within, f"nothing {within}")

    def _fail(self, waiting: _Waiting, within: str, nothing: str) -> None:
        self.stats.timeouts += 1
        if waiting.parts is not None:
            error = f"the answer to {waiting.subject} broke off: {nothing} after part {waiting.parts.newest}"
            waiting.future.set_exception(AnswerFailed(error))
            return
        waiting.future.set_exception(
            Unknown(f"no answer on {waiting.subject} {within}; it may or may not have been acted on")
        )

    def route(self, name: str, receiver: Callable[[str, Msg], None]) -> str:
        """Replies to `<returned prefix><token>` go to `receiver(token, message)`, which must not raise or block."""
        self._routes[name] = receiver
        return f"{self._prefix}.{name}."

    def new_inbox(self) -> str:
        return f"{self._prefix.rsplit('.', 1)[0]}.{secrets.token_hex(9)}"

    async def _on_reply(self, message: Msg) -> None:
        token = message.subject[len(self._prefix) + 1 :]
        waiting = self._waiting.get(token)
        if waiting is not None:
            if not waiting.future.done():
                self._take(waiting, message)
            return
        name, _, rest = token.partition(".")
        receiver = self._routes.get(name)
        if receiver is not None:
            receiver(rest, message)

    def _take(self, waiting: _Waiting, message: Msg) -> None:
        headers = message.headers or {}
        if why := parts.error_of(message.data, headers):
            waiting.future.set_exception(AnswerFailed(f"{waiting.subject}: {why}"))
        elif parts.PART not in headers:
            waiting.future.set_result(message)
        else:
            waiting.arrived_s = asyncio.get_running_loop().time()
            waiting.parts = waiting.parts or parts.Joiner()
            try:
                whole = waiting.parts.add(message.data, headers)
            except parts.Lost as error:
                waiting.future.set_exception(AnswerFailed(f"{waiting.subject}: {error}; ask again"))
                return
            if whole is not None:
                waiting.future.set_result(dataclasses.replace(message, data=whole))

    async def round_trip(self, timeout_s: float) -> bool:
        """Whether the server answers a ping now. A late ping is not cancelled: nats-py's read loop would die of its
        pong."""
        if not self.connected:
            return False
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self.nc.rtt(timeout=60))
        probe = self._probe
        done, _ = await asyncio.wait({probe}, timeout=timeout_s)
        return bool(done) and not probe.cancelled() and probe.exception() is None

    async def settle(self, timeout_s: float = 2.0) -> bool:
        """Returns once the server has handled what was sent before. Two pings: nats-py writes a ping ahead of its
        buffer."""
        return await self.round_trip(timeout_s) and await self.round_trip(timeout_s)

    def take_denied_subscription(self, subject: str) -> bool:
        """Whether the server denied this subscription; asked once after settle()."""
        if subject.lower() not in self._denied_subscriptions:
            return False
        self._denied_subscriptions.discard(subject.lower())
        return True

    def take_denied_publish(self, subject: str) -> bool:
        """Whether the server denied publishing on this subject since it was asked last."""
        denied = subject.lower() in self._denied_publishes
        self._denied_publishes.discard(subject.lower())
        return denied

    def server(self) -> dict[str, Any]:
        """What the server says of itself (its INFO)."""
        return dict(self.nc._server_info)

    def peer_certificate(self) -> bytes:
        """The server's certificate (DER); empty without TLS."""
        writer = getattr(self.nc._transport, "_io_writer", None)
        tls = None if writer is None else writer.get_extra_info("ssl_object")
        return b"" if tls is None else tls.getpeercert(binary_form=True) or b""
