"""The socket under nats-py's client. Corrects faults 14, 15 and 19 of the decision record on nats-py.

14: nats-py waits for the end of a connection without a bound. With TLS that takes 30 s where the server's machine is
gone, and never ends where the handshake was not completed: TLS has taken the socket from the stream that is waited for.
15: nats-py takes the first line after its CONNECT for the answer. Where the server first reviews a token, which may
take seconds, that line is its PING.
19: nats-py allows 2 s for the name and all of its addresses together. Where a resolver's first server is gone, or the
first address, that is never enough.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from nats.aio.transport import TcpTransport

if TYPE_CHECKING:
    import ssl
    from urllib.parse import ParseResult

RESOLVE_S = 20.0
"""How long a name may take: a resolver asks its second server after 5 s, for each suffix of its search path."""
STEP_S = 2.0
"""How long a server that works takes at most to accept a connection, to greet, and for TLS."""
ANSWER_S = 6.0
"""How long it may take to answer CONNECT. It reviews a token meanwhile, for up to 5 s (nats-callout.conf); a client
that gave up earlier and asked again would add to the queue that it waits in."""
CLOSE_S = 1.0
"""How long a connection may take to end in good order: to write what is left, and to end TLS."""


class Transport(TcpTransport):
    """One connection after the other. Each is dropped before the next one begins.

    uvloop raises RuntimeError where something is written to a closed transport of TCP; asyncio, and TLS on uvloop, drop
    it. Here that is an OSError, which nats-py takes for a lost connection.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._greeted = False

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self._greeted = False
        self._drop()
        problem: OSError = ConnectionError(f"the name {uri.hostname} has no address")
        for place in await _addresses(uri):
            try:
                async with asyncio.timeout(STEP_S):
                    await super().connect(place, buffer_size, connect_timeout)
            except OSError as error:  # TimeoutError is one
                problem = error
            else:
                return
        raise problem

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        try:
            async with asyncio.timeout(STEP_S):
                await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        except RuntimeError as error:
            raise ConnectionResetError(str(error)) from error

    def write(self, payload: bytes) -> None:
        try:
            super().write(payload)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise ConnectionResetError(str(error)) from error

    def writelines(self, payload: list[bytes]) -> None:
        try:
            super().writelines(payload)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise ConnectionResetError(str(error)) from error

    async def readline(self) -> bytes:
        """The server's greeting, then its answer to CONNECT. Raises ConnectionResetError if there is none."""
        if not self._greeted:
            async with asyncio.timeout(STEP_S):
                line = await self._line()
            self._greeted = True
            return line
        while True:
            line = await self._line()
            if line.startswith(b"PING"):
                self.write(b"PONG\r\n")
            elif not line.startswith(b"INFO"):
                return line

    async def _line(self) -> bytes:
        line = cast(bytes, await super().readline())  # type: ignore[no-untyped-call]
        if not line:
            raise ConnectionResetError("the server closed the connection before it answered")
        return line

    async def wait_closed(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await super().wait_closed()  # type: ignore[no-untyped-call]
        except TimeoutError:
            self._drop()

    def _drop(self) -> None:
        for writer in (self._io_writer, self._bare_io_writer):
            if writer is not None:
                writer.transport.abort()

    def __bool__(self) -> bool:
        return True  # nats-py takes one of its own otherwise, where there is no connection yet


async def _addresses(uri: ParseResult) -> list[ParseResult]:
    """The URL with each address of its host, in the resolver's order. Raises OSError."""
    async with asyncio.timeout(RESOLVE_S):
        found = await asyncio.get_running_loop().getaddrinfo(uri.hostname, uri.port, type=socket.SOCK_STREAM)
    hosts = dict.fromkeys(str(address[0]) for *_, address in found)
    return [uri._replace(netloc=f"[{host}]:{uri.port}" if ":" in host else f"{host}:{uri.port}") for host in hosts]
