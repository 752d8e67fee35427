"""The few JetStream calls that Kerf needs, as plain requests with the server's own JSON.

nats-py's JetStream layer is not used: it drops TTLs, changes callers' headers, leaves consumers behind and does not
retry during elections (faults 6, 10, 12, 13). API:
https://docs.nats.io/reference/reference-protocols/nats_api_reference
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from shared.bus.connection import Connection
from shared.bus.port import BusError, NoResponder, NoStream, NotConnected, Refused, Unknown
from shared.formats import UNREADABLE

if TYPE_CHECKING:
    from nats.aio.msg import Msg

WRONG_LAST_SEQUENCE = (10071, 10164)
"""A fence or revision did not hold; on replicated streams also the second code: another append is under way."""
STREAM_NOT_FOUND = 10059
MESSAGE_NOT_FOUND = 10037
NOT_AVAILABLE = (10008, 10076)
"""JetStream has no meta leader now; or it is not enabled for the account."""

LAST_SEQUENCE = "Nats-Expected-Last-Sequence"
"""The header of a store that fails unless the stream ends at this sequence."""

CALL_TIMEOUT_S = 2.0
PATIENCE_S = 10.0
"""How long an election may take before a call fails; the measured worst case is 5.1 to 7.8 s."""
RETRY_WAIT_S = 0.1
LEADERLESS_ASKS = 10
"""How often a stream's state is asked for while only servers without a leader of it answer."""
ASK_AGAIN_S = 0.5
"""A read is asked again after this time, and the first answer counts: what was asked while there was no leader is never
answered."""


class ApiError(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class Reply(msgspec.Struct, frozen=True):
    error: ApiError | None = None


class PubAck(msgspec.Struct, frozen=True):
    error: ApiError | None = None
    stream: str = ""
    seq: int = 0
    duplicate: bool = False


class StreamState(msgspec.Struct, frozen=True):
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    consumer_count: int = 0


class StreamReplica(msgspec.Struct, frozen=True):
    name: str
    current: bool = False
    offline: bool = False


class StreamCluster(msgspec.Struct, frozen=True):
    leader: str = ""
    replicas: tuple[StreamReplica, ...] = ()
    """Of the stream, beside its leader."""


class StreamInfo(msgspec.Struct, frozen=True):
    config: dict[str, Any]
    state: StreamState = StreamState()
    created: str = ""
    cluster: StreamCluster | None = None
    """Of a server in a cluster."""


class Deleted(msgspec.Struct, frozen=True):
    success: bool


class StoredMessage(msgspec.Struct, frozen=True):
    subject: str
    seq: int
    data: bytes = b""
    hdrs: bytes = b""
    time: str = ""


class MessageReply(msgspec.Struct, frozen=True):
    message: StoredMessage


class ConsumerInfo(msgspec.Struct, frozen=True):
    name: str
    num_pending: int = 0


T = TypeVar("T")
_REPLY = msgspec.json.Decoder(Reply)
_PUB_ACK = msgspec.json.Decoder(PubAck)


class JetStream:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def call(
        self,
        name: str,
        body: object,
        kind: type[T],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        again_s: float = math.inf,
    ) -> T:
        """A call of the $JS.API that may be repeated (all that Kerf makes may), retried while there is no leader.

        `again_s`: for reads, which may also be under way several times at once: ask again when there is no answer yet.

        Raises NoStream, ApiFailure (with the server's code), NotConnected, or Unknown when patience ran out.
        """
        subject = f"$JS.API.{name}"
        payload = b"" if body is None else msgspec.json.encode(body)
        deadline = asyncio.get_running_loop().time() + patience_s
        while True:
            try:
                data = await self.ask(subject, payload, timeout_s, again_s)
                error = _REPLY.decode(data).error
                if error is None:
                    return msgspec.json.decode(data, type=kind)
                if error.err_code == STREAM_NOT_FOUND:
                    raise NoStream(f"{subject}: {error.description}; provision the bus again if its store was wiped")
                if error.err_code not in NOT_AVAILABLE:
                    raise ApiFailure(f"{subject}: {error.description} ({error.err_code})", error.err_code)
                failure: BusError = Unknown(f"{subject}: {error.description} ({error.err_code})")
            except (NotConnected, NoStream):
                raise
            except (Unknown, NoResponder) as problem:
                failure = problem
            if asyncio.get_running_loop().time() + RETRY_WAIT_S > deadline or self.connection.closing:
                raise failure
            await asyncio.sleep(RETRY_WAIT_S)

    async def ask(self, subject: str, payload: bytes, timeout_s: float, again_s: float) -> bytes:
        """The first answer of those to one request, or to several; raises what the last of them raised."""
        if again_s >= timeout_s:
            return (await self.connection.request(subject, payload, timeout_s=timeout_s)).data
        deadline = asyncio.get_running_loop().time() + timeout_s
        asked: set[asyncio.Task[Msg]] = set()
        try:
            while True:
                left_s = deadline - asyncio.get_running_loop().time()
                asked.add(
                    asyncio.create_task(self.connection.request(subject, payload, timeout_s=max(left_s, again_s)))
                )
                done, _ = await asyncio.wait(asked, timeout=again_s, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return done.pop().result().data
        finally:
            for request in asked:
                request.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def store(
        self,
        stream: str,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        patience_s: float = 0.0,
    ) -> int:
        """Publishes into a stream and waits `timeout_s` for the acknowledgement; returns the sequence.

        Repeats only while the answer is that no stream listens (an election): then nothing was written, and it is asked
        for as long as `timeout_s`, or `patience_s` where that is longer. Raises Refused when an expectation failed,
        NoStream, Unknown (read back) on a time-out or any other error.
        """
        deadline = asyncio.get_running_loop().time() + max(timeout_s, patience_s)
        while True:
            left_s = deadline - asyncio.get_running_loop().time()
            within_s = max(min(left_s, timeout_s), 0.05)
            try:
                message = await self.connection.request(subject, payload, timeout_s=within_s, headers=headers)
            except NotConnected:
                raise
            except NoResponder:
                with contextlib.suppress(Unknown):  # raises NoStream where it is gone for good
                    await self.call(f"STREAM.INFO.{stream}", None, StreamInfo, timeout_s=ASK_AGAIN_S, patience_s=0.0)
                if left_s <= RETRY_WAIT_S:
                    raise
                await asyncio.sleep(RETRY_WAIT_S)
                continue
            try:
                ack = _PUB_ACK.decode(message.data)
            except UNREADABLE as error:
                raise Unknown(f"{subject}: {message.data[:80]!r} is no acknowledgement of a stream") from error
            if ack.error is not None:
                raise _failure(subject, ack.error)
            return ack.seq

    async def stream_info(self, stream: str) -> StreamInfo:
        """Returns what the stream's leader has. In a cluster a server without a leader answers too, such as one that
        has just started with an empty store. Raises Unknown if no leader answers for a while."""
        for _ in range(LEADERLESS_ASKS):
            info = await self.call(f"STREAM.INFO.{stream}", None, StreamInfo, again_s=ASK_AGAIN_S)
            if info.cluster is None or info.cluster.leader:
                return info
            await asyncio.sleep(ASK_AGAIN_S)
        raise Unknown(f"STREAM.INFO.{stream}: only a server has answered that knows no leader of the stream")

    async def get_message(self, stream: str, query: Mapping[str, object]) -> StoredMessage | None:
        """One message, read from the stream's leader; None if there is none."""
        try:
            return (await self.call(f"STREAM.MSG.GET.{stream}", query, MessageReply, again_s=ASK_AGAIN_S)).message
        except ApiFailure as failure:
            if failure.err_code == MESSAGE_NOT_FOUND:
                return None
            raise


class ApiFailure(BusError):
    """The JetStream API refused; `err_code` is the server's."""

    def __init__(self, text: str, err_code: int) -> None:
        super().__init__(text)
        self.err_code = err_code


def _failure(subject: str, error: ApiError) -> BusError:
    text = f"{subject}: {error.description} ({error.err_code})"
    if error.err_code in WRONG_LAST_SEQUENCE:
        return Refused(text)
    if error.err_code == STREAM_NOT_FOUND:
        return NoStream(text)
    return Unknown(text)


def headers_of(raw: bytes) -> dict[str, str]:
    """The headers of a stored message: lines "Name: value" after the first."""
    headers = {}
    for line in raw.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.strip().decode()] = value.strip().decode("utf-8", "replace")
    return headers
