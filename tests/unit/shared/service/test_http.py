"""The small HTTP server of every service, and clients that do not read, or are too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shared.service import http
from shared.service.http import HealthServer
from tests.support.waiting import eventually

BODY = b"x" * (8 << 20)
"""More than the buffers of two sockets hold."""
GET = b"GET /metrics HTTP/1.1\r\n\r\n"


@pytest.fixture
async def served() -> AsyncIterator[tuple[HealthServer, int]]:
    server = HealthServer()
    server.route("/metrics", lambda: (200, "text/plain", BODY))
    yield server, await server.start("127.0.0.1", 0)
    await server.stop()


async def test_a_client_that_does_not_read_is_cut_off(
    served: tuple[HealthServer, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them kept the whole answer, for ever."""
    monkeypatch.setattr(http, "ANSWER_TIMEOUT_S", 0.2)
    server, port = served
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(GET)
    await eventually(lambda: server._connections == 1, what="the connection")
    await eventually(lambda: server._connections == 0, what="its end")
    writer.close()


async def test_one_that_reads_gets_all_of_a_large_answer(served: tuple[HealthServer, int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served[1])
    writer.write(GET)
    assert (await reader.read()).endswith(b"\r\n\r\n" + BODY)
    writer.close()


async def test_more_connections_than_a_service_needs_are_refused_until_others_end(
    served: tuple[HealthServer, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MOST", 1)
    server, port = served
    _, idle = await asyncio.open_connection("127.0.0.1", port)
    await eventually(lambda: server._connections == 1, what="the first connection")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    idle.close()
    await eventually(lambda: server._connections == 0, what="its end")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    writer.close()
