"""The small HTTP server of every service, and clients that do not read, or are too many."""

from __future__ import annotations

import asyncio
import contextlib
import socket
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
    await eventually(lambda: len(server._connections) == 1, what="the connection")
    await eventually(lambda: len(server._connections) == 0, what="its end")
    writer.close()


async def test_everywhere_is_every_address_of_both_kinds() -> None:
    """A pod of a cluster with IPv6 alone has no other."""
    server = HealthServer()
    server.route("/metrics", lambda: (200, "text/plain", b"here"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    await server.start(http.EVERYWHERE, port)
    try:
        for address in ("127.0.0.1", *(["::1"] if _has_ipv6() else [])):
            reader, writer = await asyncio.open_connection(address, port)
            writer.write(GET)
            assert (await reader.read()).endswith(b"here")
            writer.close()
    finally:
        await server.stop()


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


async def test_one_that_reads_gets_all_of_a_large_answer(served: tuple[HealthServer, int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served[1])
    writer.write(GET)
    assert (await reader.read()).endswith(b"\r\n\r\n" + BODY)
    writer.close()


async def test_idle_connections_keep_no_probe_out(
    served: tuple[HealthServer, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any pod may open them. The oldest goes for a new one."""
    monkeypatch.setattr(http, "CONNECTIONS_MOST", 2)
    server, port = served
    idle = []
    for number in range(2):
        idle.append(await asyncio.open_connection("127.0.0.1", port))
        await eventually(lambda number=number: len(server._connections) == number + 1, what="the connection")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    with contextlib.suppress(ConnectionResetError):
        assert await idle[0][0].read() == b"", "the oldest was ended"
    assert not idle[1][0].at_eof()
    for _, one in (*idle, (reader, writer)):
        one.close()
