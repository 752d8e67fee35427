"""What a service may do with the bus. Other features of NATS are left out on purpose.

The contract:
1. Handlers of one subscription run one at a time, in order, unless `concurrency` says otherwise. A handler that raises
   is logged and counted; the subscription lives on.
2. `request` raises Unknown on a time-out: the other side may or may not have acted, or may yet act. Read back; never
   repeat blindly. NoResponder means that there was no subscriber and nothing happened.
3. `append` is durable when it returns (the server has synced it). Refused means that it is not in the stream. Unknown
   means read back.
4. `publish_event` never blocks and never raises; what could not be delivered is counted and logged.
5. After a reconnect every subscription and KV watch resumes by itself; `on_reconnect` callbacks run after that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol

import msgspec


class BusError(Exception):
    """Something on the bus failed; the text says what was tried and what to look at."""


class Unknown(BusError):
    """No answer in time: it may have happened."""


class AnswerFailed(Unknown):
    """The request was received, and its answer could not be sent or did not arrive whole; the text says why."""


class NoResponder(BusError):
    """There is no subscriber on that subject; nothing happened."""


class NotConnected(NoResponder):
    """There is no connection to a server now; nothing was sent."""


class NotTaken(BusError):
    """There is no connection to a server now, and the client keeps no more for when there is one; nothing was sent."""


def level_of(error: BusError) -> str:
    """The level of a log line about it: that there is no connection, the connection itself logs once for all."""
    return "debug" if isinstance(error, NotConnected) else "warning"


class NoStream(NoResponder):
    """The stream or bucket does not exist (the store was wiped, or was never provisioned); nothing was written."""


class Refused(BusError):
    """An expectation (fence, revision) did not hold; nothing was written."""


class Incoming(msgspec.Struct, frozen=True):
    subject: str
    payload: bytes
    reply: str = ""
    headers: Mapping[str, str] = {}


class LogEntry(msgspec.Struct, frozen=True):
    sequence: int
    subject: str
    payload: bytes
    stream: str = ""
    """Of followed events: another text where the stream was made anew, and its sequences with it."""
    foreign: bool = False
    """Of the log: no leader has appended it. NATS checks what a user publishes to, not where the answer is to go: an
    answer of its own can be led into the log."""


class KvEntry(msgspec.Struct, frozen=True):
    """`value` None: deleted, expired or never present. A compare-and-swap must name `revision` (0: never present)."""

    key: str
    value: bytes | None
    revision: int


Handler = Callable[[Incoming], Awaitable[None]]


class Subscription(Protocol):
    async def stop(self) -> None: ...


class KvBucket(Protocol):
    async def get(self, key: str) -> KvEntry: ...

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> int:
        """Returns the revision. The caller passes keys that may hold dots through `subjects.token`."""

    async def swap(self, key: str, value: bytes, expected_revision: int, *, ttl_s: float | None = None) -> int:
        """Compare-and-swap; Refused if the revision has moved on. Every swap sets the TTL anew."""

    async def delete(self, key: str) -> None: ...

    async def watch(self, handler: Callable[[KvEntry], Awaitable[None]], *, key: str = ">") -> Subscription:
        """Every present key first, then every change; resumes by itself, so an entry may come twice."""


class Bus(Protocol):
    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None: ...

    async def publish_in_parts(self, subject: str, payload: bytes) -> None:
        """Publishes a message of any size: one that is larger than the server takes goes in parts, which subscribers
        join (`shared.bus.parts.joined`). The subject has one publisher, with one message after the other."""

    async def request(self, subject: str, payload: bytes, *, timeout_s: float = 2.0) -> bytes:
        """The answer, of any size: one that is larger than a message comes in parts (`shared.bus.parts`)."""

    async def survey(
        self, subject: str, payload: bytes, *, within_s: float, enough: Callable[[list[bytes]], bool] = lambda _: False
    ) -> list[bytes]:
        """The answers of all responders that come within this time, or until they are enough. Raises BusError where
        nothing can be asked."""

    async def respond(self, incoming: Incoming, payload: bytes) -> None:
        """Answers a request; does nothing if no answer is expected. Never echoes the request's headers. An answer that
        cannot be sent becomes an error that the asker reads."""

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = "", concurrency: int = 1
    ) -> Subscription: ...

    def publish_event(self, subject: str, payload: bytes, event_id: str, *, traceparent: str = "") -> None:
        """Onto KERF_EVENTS, deduplicated by `event_id`, without waiting."""

    async def follow_events(
        self, handler: Callable[[LogEntry], Awaitable[None]], *, start: int = 1, stream: str = ""
    ) -> Subscription:
        """KERF_EVENTS from sequence `start` on, in order, at least once, for ever; entries that have aged away are
        skipped. A stream that was recreated after a wipe starts at 1 again: one that ends before `start`, and one that
        is not `stream`, where the place was remembered with it."""

    async def append(
        self, subject: str, payload: bytes, *, fence_subject: str, fence_sequence: int, last_sequence: int | None = None
    ) -> int:
        """Appends to KERF_LOG, provided that the newest entry on `fence_subject` has `fence_sequence` (0: there is
        none) and that the log's last entry has `last_sequence` (None: any). Returns the entry's sequence."""

    def read_log(self, *, start: int = 1) -> AsyncIterator[LogEntry]:
        """KERF_LOG from `start` to its present end."""

    async def log_end(self) -> int:
        """The last sequence of KERF_LOG, 0 when empty."""

    async def newest(self, subject: str) -> LogEntry | None:
        """The newest entry of KERF_LOG on a subject."""

    async def read_mark(self) -> tuple[bytes | None, int]:
        """The log's mark, which lives in the servers' memory, and its revision."""

    async def write_mark(self, value: bytes, revision: int) -> int:
        """Compare-and-swap; Refused if the revision has moved on, also because the servers have lost the mark. Returns
        the new one."""

    async def begin_log_anew(self, first_sequence: int) -> None:
        """Deletes KERF_LOG with all its entries, and recreates it with a higher first sequence than any before."""

    def kv(self, bucket: str) -> KvBucket: ...

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None: ...

    @property
    def connected(self) -> bool: ...

    async def alive(self, *, timeout_s: float = 2.0) -> bool:
        """Whether the server answers a ping now; not what the client believes."""
