"""A lean HTTP/1.1 client for one server: keep-alive connections, one request in flight on each.

Why not a general client: a Binding through aiohttp costs more CPU than everything else that Kerf does for a pod
(docs/decisions, 0010). This one knows one host, sends whole bodies, and reads answers strictly.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import cast

from shared.kube.http1_parse import ProtocolError, ResponseParser
from shared.kube.transport import JSON, Response, TransportError

CONNECT_TIMEOUT_S = 5.0
IDLE_LIMIT_S = 30.0
STREAM_BUFFER_BYTES = 4 << 20
_BODY_LIMIT_BYTES = 512 << 20


class Http1Transport:
    """`authorization` gives the header's value, or "" for none, and is asked at every request, for tokens are renewed.

    `explain` may turn a failed handshake into a sentence that says what to do.
    """

    def __init__(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, server_name: str = "", base_path: str = "",
        authorization: Callable[[], str] = lambda: "", explain: Callable[[OSError], str] = str, max_connections: int = 64,
        user_agent: str = "kerf",
    ) -> None:  # fmt: skip
        self._host, self._port, self._tls = host, port, tls
        self._server_name = server_name
        self._base = base_path.rstrip("/")
        self._authorization = authorization
        self._explain = explain
        name = f"[{host}]" if ":" in host else host
        self._common = f"Host: {name}:{port}\r\nUser-Agent: {user_agent}\r\nAccept: {JSON}\r\n"
        self._idle: list[_Connection] = []
        self._free = max_connections
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self.opened = 0
        """Connections made so far."""

    async def request(self, method: str, path: str, body: bytes = b"", *, content_type: str = JSON, timeout_s: float = 10.0) -> Response:
        """Raises TransportError. A GET is asked once more where a kept connection had died unnoticed; a write never is."""
        message = self._message(method, path, body, content_type)
        await self._take_slot()
        try:
            while True:
                connection, reused = await self._connection()
                try:
                    response = await connection.exchange(message, timeout_s)
                except TransportError as error:
                    if reused and method == "GET" and error.sent and connection.silent:
                        continue
                    raise
                if connection.reusable:
                    connection.idle_since = asyncio.get_running_loop().time()
                    self._idle.append(connection)
                return response
        finally:
            self._give_slot()

    @contextlib.asynccontextmanager
    async def stream(self, path: str, *, read_timeout_s: float) -> AsyncIterator[tuple[Response, AsyncIterator[bytes]]]:
        """On a connection of its own, which is closed at the end of the block."""
        connection = await self._open()
        try:
            connection.begin_stream(self._message("GET", path, b"", JSON), read_timeout_s)
            chunks = connection.chunks()
            response = await connection.head()
            if response.status != 200:
                response = response._replace(body=b"".join([chunk async for chunk in chunks]))
            yield response, chunks
        finally:
            connection.abort()

    async def close(self) -> None:
        self._closed = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _message(self, method: str, path: str, body: bytes, content_type: str) -> bytes:
        if not path.startswith("/") or not path.isascii() or any(c in path for c in " \r\n"):
            raise ValueError(f"{path!r} is no path for a request")
        authorization = self._authorization()
        head = f"{method} {self._base}{path} HTTP/1.1\r\n{self._common}"
        if authorization:
            head += f"Authorization: {authorization}\r\n"
        if body or method in ("POST", "PUT", "PATCH"):
            head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        return head.encode("latin-1") + b"\r\n" + body

    async def _take_slot(self) -> None:
        if self._free > 0 and not self._waiters:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_slot()  # the slot was handed over just as we were cancelled
            raise

    def _give_slot(self) -> None:
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    async def _connection(self) -> tuple[_Connection, bool]:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and now - connection.idle_since < IDLE_LIMIT_S:
                return connection, True
            connection.abort()
        return await self._open(), False

    async def _open(self) -> _Connection:
        if self._closed:
            raise TransportError("the client is closed", sent=False)
        loop = asyncio.get_running_loop()
        name = (self._server_name or self._host) if self._tls else None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls, server_hostname=name)
        except TimeoutError as error:
            raise TransportError(f"no connection to {self._host}:{self._port} in {CONNECT_TIMEOUT_S:.0f} s", sent=False) from error
        except OSError as error:
            raise TransportError(f"no connection to {self._host}:{self._port}: {self._explain(error)}", sent=False) from error
        self.opened += 1
        return connection


class _Connection(asyncio.Protocol):
    """One socket. Either `exchange`, one after the other, or one stream for the rest of its life."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = ResponseParser()
        self._body: list[bytes] = []
        self._size = 0
        self._done: asyncio.Future[Response] | None = None
        self._streaming = False
        self._arrived = asyncio.Event()
        self._error: TransportError | None = None
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.idle_since = 0.0
        self.silent = True
        """Whether not a byte came of the answer to the last request."""

    @property
    def reusable(self) -> bool:
        return (
            self._error is None
            and self._done is None
            and not self._streaming
            and self._transport is not None
            and not self._transport.is_closing()
        )

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        self.silent = False
        if self._done is None and not self._streaming:
            self._fail("the server spoke unasked")
            return
        parser = self._parser
        try:
            pieces = parser.feed(data)
        except ProtocolError as error:
            self._fail(f"the server's answer cannot be read: {error}")
            return
        if pieces:
            self._body += pieces
            self._size += sum(map(len, pieces))
        if self._streaming:
            self._heard_at = asyncio.get_running_loop().time()
            self._pace()
            self._arrived.set()
        elif parser.done:
            self._finish()
        elif self._size > _BODY_LIMIT_BYTES:
            self._fail(f"the answer is larger than {_BODY_LIMIT_BYTES} bytes")

    def eof_received(self) -> None:
        try:
            self._parser.end_of_stream()
        except ProtocolError as error:
            self._fail(str(error))
            return
        if self._streaming:
            self._arrived.set()
        elif self._done is not None:
            self._finish()
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection was lost: {error}" if error else "the connection was closed")

    # --- one request --------------------------------------------------------------------------------------------------

    async def exchange(self, message: bytes, timeout_s: float) -> Response:
        assert self._transport is not None  # noqa: S101
        loop = asyncio.get_running_loop()
        self._parser, self._body, self._size, self.silent = ResponseParser(), [], 0, True
        self._done = loop.create_future()
        timer = loop.call_later(timeout_s, self._fail, f"no answer in {timeout_s:g} s")
        self._transport.write(message)
        try:
            return await self._done
        except asyncio.CancelledError:
            self._fail("the request was given up")
            raise
        finally:
            timer.cancel()
            self._done = None

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            parser = self._parser
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._done.set_result(Response(parser.status, body, _seconds(parser.headers.get(b"retry-after"))))
        if not self._parser.keep_alive:
            self.abort()

    def _fail(self, text: str) -> None:
        if self._error is None:
            self._error = TransportError(text)
        if self._done is not None and not self._done.done():
            self._done.set_exception(self._error)
        self._arrived.set()
        self.abort()

    def abort(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

    # --- a stream -----------------------------------------------------------------------------------------------------

    def begin_stream(self, message: bytes, read_timeout_s: float) -> None:
        assert self._transport is not None  # noqa: S101
        self._streaming = True
        self._heard_at = asyncio.get_running_loop().time()
        self._listen(read_timeout_s)
        self._transport.write(message)

    async def head(self) -> Response:
        while not self._parser.status:
            await self._more()
        return Response(self._parser.status, b"", _seconds(self._parser.headers.get(b"retry-after")))

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            if self._body:
                data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
                self._body, self._size = [], 0
                self._pace()
                yield data
            elif self._parser.done:
                return
            else:
                await self._more()

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._arrived.clear()
        await self._arrived.wait()

    def _listen(self, read_timeout_s: float) -> None:
        """One timer for the whole stream, set anew only when it rings: a scope around each wait costs more than its data.

        While we make the server wait there is nothing to hear, and that is not its silence.
        """
        if self._transport is None or self._transport.is_closing():
            return
        loop = asyncio.get_running_loop()
        if not self._transport.is_reading():
            self._heard_at = loop.time()
        left_s = self._heard_at + read_timeout_s - loop.time()
        if left_s <= 0:
            self._fail(f"not a byte in {read_timeout_s:g} s")
            return
        self._timer = loop.call_later(left_s, self._listen, read_timeout_s)

    def _pace(self) -> None:
        """A reader that is slower than the server makes the server wait, not our memory grow."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._size > STREAM_BUFFER_BYTES:
            self._transport.pause_reading()
        elif not self._transport.is_reading():
            self._transport.resume_reading()


def _seconds(value: bytes | None) -> float:
    """Retry-After in seconds; its other form, a date, is read as none."""
    return float(value) if value is not None and value.isdigit() else 0.0
