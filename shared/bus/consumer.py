"""An ephemeral push consumer that detects its own loss and leaves nothing behind on the server.

nats-py's watchers stay silent for 20 s after a restart, for ever after a bucket was recreated, and leave their consumer
on the server (faults 1 and 12); pull fetches hang across a crash (fault 2). Here the server sends a heartbeat every
second. Silence, a gap in the consumer's own numbers or a reconnection ends the round with `Lost`, and the owner starts
another one from its last position.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import msgspec
import nats.errors
import structlog

from shared.bus.connection import Connection
from shared.bus.jetstream import ApiFailure, ConsumerInfo, JetStream, Reply
from shared.bus.port import BusError, NoStream

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

HEARTBEAT_S = 1.0
SILENCE_S = 2.5
"""Two and a half missed heartbeats."""

log = structlog.get_logger("bus")


class Lost(BusError):
    """The consumer is gone or has missed a message: start another one."""


class Delivered(msgspec.Struct, frozen=True):
    subject: str
    data: bytes
    headers: dict[str, str]
    sequence: int
    time_ns: int
    pending: int
    """How many messages follow this one in the stream."""


class EphemeralConsumer:
    """Call open(), then next() repeatedly, then close()."""

    def __init__(
        self, js: JetStream, stream: str, *, filter_subject: str = "", start: int = 0, last_per_subject: bool = False
    ) -> None:
        self._js = js
        self._connection: Connection = js.connection
        self._stream = stream
        self._filter = filter_subject
        self._start = start
        self._last_per_subject = last_per_subject
        self._name = f"kerf-{secrets.token_hex(8)}"
        self._queue: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._sub: Subscription | None = None
        self._consumed = 0
        self._reconnects = 0
        self.pending_at_start = 0

    async def open(self) -> None:
        """Creates the consumer. Raises BusError (NoStream if there is no such stream)."""
        self._reconnects = self._connection.stats.reconnects
        inbox = self._connection.new_inbox()
        try:
            self._sub = await self._connection.nc.subscribe(inbox, cb=self._receive)
        except nats.errors.Error as error:
            raise BusError(f"cannot subscribe for a consumer of {self._stream}: {error}") from error
        config: dict[str, Any] = {
            "name": self._name,
            "deliver_subject": inbox,
            "ack_policy": "none",
            "replay_policy": "instant",
            "idle_heartbeat": int(HEARTBEAT_S * 1e9),
            "flow_control": True,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(10e9),
            "deliver_policy": "all",
            "max_deliver": 1,
        }
        name = f"CONSUMER.CREATE.{self._stream}.{self._name}"
        if self._filter:
            config["filter_subject"] = self._filter
            name += f".{self._filter}"
        if self._last_per_subject:
            config["deliver_policy"] = "last_per_subject"
        elif self._start > 1:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self._start}
        try:
            # The same name and config again is harmless, so this may be repeated through an election.
            info = await self._js.call(
                name, {"stream_name": self._stream, "config": config, "action": ""}, ConsumerInfo
            )
        except BusError:
            await self.close()
            raise
        self.pending_at_start = info.num_pending

    async def _receive(self, message: Msg) -> None:
        self._queue.put_nowait(message)

    def wake(self) -> None:
        """Makes a waiting next() raise Lost."""
        self._queue.put_nowait(None)

    async def next(self, *, until: float) -> Delivered | None:
        """The next message, or None at loop time `until`. Raises Lost."""
        loop = asyncio.get_running_loop()
        while True:
            silence = loop.time() + SILENCE_S
            try:
                if self._queue.empty():
                    async with asyncio.timeout_at(min(silence, until)):
                        message = await self._queue.get()
                else:
                    message = self._queue.get_nowait()
            except TimeoutError:
                if loop.time() >= until:
                    return None
                raise Lost(f"consumer of {self._stream} has been silent for {SILENCE_S} s") from None
            if message is None or self._connection.stats.reconnects != self._reconnects:
                raise Lost(f"the connection under the consumer of {self._stream} was replaced")
            headers = message.headers or {}
            if "Status" in headers and not message.data:
                await self._control(message, headers)
                continue
            return self._deliver(message, headers)

    async def _control(self, message: Msg, headers: dict[str, str]) -> None:
        if headers["Status"] != "100":
            raise Lost(f"consumer of {self._stream}: {headers['Status']} {headers.get('Description', '')}")
        flow = message.reply or headers.get("Nats-Consumer-Stalled", "")
        if flow:
            await self._connection.publish(flow, b"")
        last = headers.get("Nats-Last-Consumer")
        if last is not None and int(last) != self._consumed:
            raise Lost(f"consumer of {self._stream} has delivered {last} messages, {self._consumed} came")

    def _deliver(self, message: Msg, headers: dict[str, str]) -> Delivered:
        # $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<ns>.<pending>, newer servers with the
        # domain and account hash after ACK and a token at the end.
        tokens = message.reply.split(".")
        offset = 2 if len(tokens) >= 11 else 0
        sequence, number, time_ns, pending = (int(t) for t in tokens[5 + offset : 9 + offset])
        if number != self._consumed + 1:
            raise Lost(f"consumer of {self._stream} jumped from {self._consumed} to {number}")
        self._consumed = number
        return Delivered(
            subject=message.subject,
            data=message.data,
            headers=headers,
            sequence=sequence,
            time_ns=time_ns,
            pending=pending,
        )

    async def close(self) -> None:
        """Deletes the consumer on the server. If that fails, the server deletes it after 10 s without a reader."""
        if self._sub is None:
            return
        sub, self._sub = self._sub, None
        try:
            await sub.unsubscribe()
            if self._connection.connected:
                await self._js.call(f"CONSUMER.DELETE.{self._stream}.{self._name}", None, Reply, patience_s=0)
        except (ApiFailure, NoStream) as failure:
            log.debug("bus_consumer_was_gone", stream=self._stream, error=str(failure))
        except (BusError, nats.errors.Error) as error:
            log.info("bus_consumer_left_to_expire", stream=self._stream, error=str(error) or type(error).__name__)
