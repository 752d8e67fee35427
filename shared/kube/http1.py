"""A lean HTTP/1.1 client for one server: keep-alive connections, one request in flight on each.

A Binding through aiohttp costs twice the CPU (docs/decisions, 0010). This client knows one host, sends whole bodies,
and reads answers strictly.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable

from shared.kube.http1_connection import Connection
from shared.kube.transport import JSON, Response, TransportError

CONNECT_TIMEOUT_S = 5.0
IDLE_LIMIT_S = 30.0


def _notice_its_end(transport: asyncio.BaseTransport) -> None:
    """A server whose machine vanishes says nothing: a stream would stay open until it has been silent for minutes."""
    made = transport.get_extra_info("socket")
    if made is None or made.family not in (socket.AF_INET, socket.AF_INET6):
        return
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, option):  # Linux has all of them
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Http1Transport:
    """`authorization` returns the header's value, or "" for none. It is called at every request, for tokens are
    renewed. `certificates` counts renewals of the client certificate: no connection of an older one is used again.
    `trust` is called before a connection is opened.

    `explain` may turn a failed handshake into a sentence that says what to do.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
        base_path: str = "",
        authorization: Callable[[], str] = lambda: "",
        certificates: Callable[[], int] = lambda: 0,
        trust: Callable[[], None] = lambda: None,
        explain: Callable[[OSError], str] = str,
        max_connections: int = 64,
        user_agent: str = "kerf",
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._server_name = server_name
        self._base = base_path.rstrip("/")
        self._authorization, self._certificates, self._trust = authorization, certificates, trust
        self._explain = explain
        name = f"[{host}]" if ":" in host else host
        self._common = f"Host: {name}:{port}\r\nUser-Agent: {user_agent}\r\nAccept: {JSON}\r\n"
        self._idle: list[Connection] = []
        self._free = max_connections
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self.opened = 0
        """Connections opened so far."""

    async def request(
        self, method: str, path: str, body: bytes = b"", *, content_type: str = JSON, timeout_s: float = 10.0
    ) -> Response:
        """Raises TransportError. A GET is repeated once if a kept connection had died unnoticed; a write never is."""
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

    async def _connection(self) -> tuple[Connection, bool]:
        now, newest = asyncio.get_running_loop().time(), self._certificates()
        while self._idle:
            connection = self._idle.pop()
            fresh = now - connection.idle_since < IDLE_LIMIT_S and connection.certificate == newest
            if connection.reusable and fresh:
                return connection, True
            connection.abort()
        return await self._open(), False

    async def _open(self) -> Connection:
        if self._closed:
            raise TransportError("the client is closed", sent=False)
        loop, certificate = asyncio.get_running_loop(), self._certificates()
        name = (self._server_name or self._host) if self._tls else None
        self._trust()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, connection = await loop.create_connection(
                    Connection, self._host, self._port, ssl=self._tls, server_hostname=name
                )
                _notice_its_end(transport)
        except TimeoutError as error:
            raise TransportError(
                f"no connection to {self._host}:{self._port} in {CONNECT_TIMEOUT_S:.0f} s", sent=False
            ) from error
        except OSError as error:
            raise TransportError(
                f"no connection to {self._host}:{self._port}: {self._explain(error)}", sent=False
            ) from error
        self.opened += 1
        connection.certificate = certificate
        return connection
