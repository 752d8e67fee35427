"""/healthz, /readyz and /metrics on a few lines of HTTP/1.1: one request per connection, GET only."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

import msgspec
import structlog

REQUEST_LIMIT_BYTES = 8192
REQUEST_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
"""How long a client may take to read an answer: longer than Prometheus waits for one."""
CONNECTIONS_MOST = 64
"""Probes and a few Prometheus servers need a handful. Each connection may keep an answer of megabytes."""

Answer = tuple[int, str, bytes]
"""Status, content type, body."""

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

EVERYWHERE = "*"
"""As a host to listen on: all addresses of this machine, of IPv4 and of IPv6. A pod has one of them, or both."""

log = structlog.get_logger("http")


def bound_to(host: str) -> str | None:
    """`host` as asyncio takes it: None for `EVERYWHERE`."""
    return None if host == EVERYWHERE else host


class HealthServer:
    def __init__(self) -> None:
        self._routes: dict[str, Callable[[], Answer]] = {}
        self._server: asyncio.Server | None = None
        self._connections: OrderedDict[asyncio.StreamWriter, None] = OrderedDict()

    def route(self, path: str, answer: Callable[[], Answer]) -> None:
        self._routes[path] = answer

    async def start(self, host: str, port: int) -> int:
        """Listens, on a free port where `port` is 0, and returns the port; `EVERYWHERE` takes another free one for each
        kind of address. Raises OSError where it is taken."""
        self._server = await asyncio.start_server(self._serve, bound_to(host), port, limit=REQUEST_LIMIT_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client that sends nothing, or does not read, is cut off: each keeps a connection, and a whole answer."""
        if len(self._connections) >= CONNECTIONS_MOST:  # the oldest goes: idle ones would keep every probe out
            self._connections.popitem(last=False)[0].transport.abort()
        self._connections[writer] = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, content_type, body = self._answer(head)
            writer.write(
                f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\nContent-Length: "
                f"{len(body)}\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                writer.transport.set_write_buffer_limits(0)  # until all of it is sent
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            log.debug("http_request_failed", error=repr(error))  # a scanner or a probe that gave up; nothing of ours
            writer.transport.abort()
        finally:
            self._connections.pop(writer, None)
            writer.close()

    def _answer(self, head: bytes) -> Answer:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        if method != b"GET":
            return 405, "text/plain", b"only GET\n"
        route = self._routes.get(path)
        if route is None:
            return 404, "text/plain", f"known are {' '.join(sorted(self._routes))}\n".encode()
        try:
            return route()
        except Exception as error:
            log.error("http_handler_failed", path=path, error=repr(error), exc_info=error)
            return 500, "text/plain", b"see the log\n"


def as_json(status: int, value: object) -> Answer:
    return status, "application/json", msgspec.json.encode(value) + b"\n"
