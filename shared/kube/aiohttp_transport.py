"""The same transport interface through aiohttp: for proxies, and to measure the lean client against."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import aiohttp
from yarl import URL

from shared.kube.access import Access, explain
from shared.kube.transport import JSON, MAX_RETRY_AFTER_S, Response, TransportError

CONNECT_TIMEOUT_S = 5.0


class AiohttpTransport:
    def __init__(self, access: Access, *, max_connections: int = 64, user_agent: str = "kerf") -> None:
        self._access = access
        self._max_connections = max_connections
        self._headers = {"User-Agent": user_agent, "Accept": JSON, "Accept-Encoding": "identity"}
        self._made: aiohttp.ClientSession | None = None
        self._before: aiohttp.ClientSession | None = None
        """The session of the client certificate before. What was in flight when it was renewed ends long before the
        next renewal."""
        self._streams: aiohttp.ClientSession | None = None
        self._certificate = 0

    async def request(
        self, method: str, path: str, body: bytes = b"", *, content_type: str = JSON, timeout_s: float = 10.0
    ) -> Response:
        try:
            async with (await self._session()).request(
                method,
                self._url(path),
                data=body or None,
                headers=self._with(content_type),
                proxy=self._access.proxy or None,
                server_hostname=self._access.server_name or None,
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
            ) as response:
                return Response(response.status, await response.read(), _seconds(response.headers.get("Retry-After")))
        except aiohttp.ClientConnectorError as error:
            raise TransportError(explain(getattr(error, "certificate_error", error)), sent=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TransportError(str(error) or f"no answer in {timeout_s:g} s") from error

    @contextlib.asynccontextmanager
    async def stream(self, path: str, *, read_timeout_s: float) -> AsyncIterator[tuple[Response, AsyncIterator[bytes]]]:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=read_timeout_s)
        try:
            answer = await self._session_of_streams().request(
                "GET",
                self._url(path),
                headers=self._with(""),
                proxy=self._access.proxy or None,
                server_hostname=self._access.server_name or None,
                timeout=limits,
            )
            body = b"" if answer.status == 200 else await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TransportError(str(error) or f"not a byte in {read_timeout_s:g} s") from error
        try:
            yield (
                Response(answer.status, body, _seconds(answer.headers.get("Retry-After"))),
                _chunks(answer, read_timeout_s),
            )
        finally:
            answer.close()

    async def close(self) -> None:
        for session in (self._made, self._before, self._streams):
            if session is not None:
                await session.close()
        self._made = self._before = self._streams = None

    async def _session(self) -> aiohttp.ClientSession:
        """The session of requests. A renewed client certificate begins a new one: no kept connection has it."""
        newest = self._access.certificates()
        if self._made is not None and newest != self._certificate:
            ended, self._before, self._made = self._before, self._made, None
            if ended is not None:
                await ended.close()
        if self._made is None:
            self._certificate = newest
            self._made = self._new_session(self._max_connections)
        return self._made

    def _session_of_streams(self) -> aiohttp.ClientSession:
        """Streams stay open for minutes: each has a connection of its own, and none is taken from the requests."""
        if self._streams is None:
            self._streams = self._new_session(0, force_close=True)
        return self._streams

    def _new_session(self, most: int, *, force_close: bool = False) -> aiohttp.ClientSession:
        """`most`: connections at once; 0: as many as there are requests. `force_close`: none is kept."""
        connector = aiohttp.TCPConnector(limit=most, force_close=force_close, ssl=self._access.tls or False)
        return aiohttp.ClientSession(connector=connector, headers=self._headers, auto_decompress=False)

    def _url(self, path: str) -> URL:
        return URL(self._access.server.rstrip("/") + path, encoded=True)

    def _with(self, content_type: str) -> dict[str, str]:
        self._access.trust()  # a request may open a connection
        authorization = self._access.authorization()
        return {
            **({"Content-Type": content_type} if content_type else {}),
            **({"Authorization": authorization} if authorization else {}),
        }


async def _chunks(answer: aiohttp.ClientResponse, read_timeout_s: float) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise TransportError(str(error) or f"not a byte in {read_timeout_s:g} s") from error


def _seconds(value: str | None) -> float:
    return min(MAX_RETRY_AFTER_S, float(value)) if value is not None and value.isascii() and value.isdigit() else 0.0
