"""The minimal client against a server that misbehaves on command.

Against a well-behaved one, the real API server: tests/cluster and tests/contract/cluster_source.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from shared.kube.http1 import Http1Transport
from shared.kube.transport import Response, TransportError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Runs `script` for each connection; `requests` are the heads and bodies that came."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.script: Script = self.answer(OK)
        self.port = 0

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0
        )
        request = head + await reader.readexactly(length)
        self.requests.append(request)
        return request

    def answer(self, *answers: bytes) -> Script:
        """One answer per request, then the connection is closed; the last one repeats for ever."""

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for answer in answers:
                await self.read(reader)
                writer.write(answer)
            while True:
                await self.read(reader)
                writer.write(answers[-1])

        return script

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client closed the connection, as it may
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = int(listening.sockets[0].getsockname()[1])
    yield made
    listening.close()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Http1Transport]:
    transport = Http1Transport(
        "127.0.0.1", server.port, authorization=lambda: "Bearer t", max_connections=2, base_path="/base/"
    )
    yield transport
    await transport.close()


async def test_a_request_is_complete_and_has_the_callers_credentials(server: Server, client: Http1Transport) -> None:
    assert await client.request("POST", "/a?b=c", b'{"x":1}') == Response(200, b"ok")
    head, body = server.requests[0].split(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /base/a?b=c HTTP/1.1"
    assert b"Authorization: Bearer t" in head.split(b"\r\n")
    assert b"Host: 127.0.0.1:%d" % server.port in head.split(b"\r\n")
    assert body == b'{"x":1}'


async def test_connections_are_kept_and_never_more_than_allowed(server: Server, client: Http1Transport) -> None:
    answers = await asyncio.gather(*(client.request("GET", f"/{i}") for i in range(50)))
    assert answers == [Response(200, b"ok")] * 50
    assert server.connections == client.opened == 2


async def test_a_write_on_a_connection_that_died_is_unknown_and_not_repeated(
    server: Server, client: Http1Transport
) -> None:
    async def dies_after_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self_read(reader)
        writer.write(OK)
        await self_read(reader)  # and then silence: the server may have acted on it

    self_read = server.read
    server.script = dies_after_reading
    await client.request("GET", "/")
    with pytest.raises(TransportError, match="ended before a response") as failure:
        await client.request("POST", "/", b"{}")
    assert failure.value.sent
    assert len(server.requests) == 2


async def test_a_read_on_a_broken_connection_is_repeated(server: Server, client: Http1Transport) -> None:
    async def dies_after_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        writer.write(OK)
        await server.read(reader)

    server.script = dies_after_reading
    await client.request("GET", "/")
    assert await client.request("GET", "/") == Response(200, b"ok")
    assert server.connections == 2


async def test_no_answer_in_time_is_unknown_and_ends_the_connection(server: Server, client: Http1Transport) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        await reader.read()  # until the client gives up

    server.script = silent
    with pytest.raises(TransportError, match=r"no answer in 0\.05 s") as failure:
        await client.request("POST", "/", b"{}", timeout_s=0.05)
    assert failure.value.sent
    server.script = server.answer(OK)
    assert (await client.request("GET", "/")).status == 200


async def test_a_cancelled_request_leaves_nothing_behind_for_the_next(server: Server, client: Http1Transport) -> None:
    """Its late answer must never be taken for that of another request."""
    came = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        came.set()
        await reader.read()

    server.script = late
    asking = [asyncio.create_task(client.request("GET", "/lost")) for _ in range(2)]
    await came.wait()
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)
    server.script = server.answer(OK)
    assert (await client.request("GET", "/")).body == b"ok"


async def test_a_refused_connection_means_that_nothing_was_sent(server: Server) -> None:
    client = Http1Transport("127.0.0.1", 1)
    with pytest.raises(TransportError, match="no connection") as failure:
        await client.request("POST", "/", b"{}")
    assert not failure.value.sent


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"SMTP ready\r\n\r\n", OK + b"and more"]
)
async def test_an_answer_that_cannot_be_read_is_an_error(server: Server, client: Http1Transport, answer: bytes) -> None:
    server.script = server.answer(answer)
    with pytest.raises(TransportError, match="cannot be read"):
        await client.request("GET", "/")


@pytest.mark.parametrize("path", ["no-slash", "/a b", "/a\r\nX: y", "/ä"])
async def test_a_path_that_would_break_the_request_is_refused(client: Http1Transport, path: str) -> None:
    with pytest.raises(ValueError, match="is no path"):
        await client.request("GET", path)


@pytest.mark.parametrize(
    ("header", "delay_s"),
    [(b"3", 3.0), (b"60", 8.0), (b"9" * 400, 8.0), (b"Wed, 21 Oct 2026 07:28:00 GMT", 0.0), (b"-1", 0.0)],
)
async def test_retry_after_is_passed_on_up_to_some_seconds(
    server: Server, client: Http1Transport, header: bytes, delay_s: float
) -> None:
    server.script = server.answer(b"HTTP/1.1 429 Slow\r\nRetry-After: %b\r\nContent-Length: 0\r\n\r\n" % header)
    assert await client.request("GET", "/") == Response(429, b"", delay_s)


async def test_a_stream_gives_bytes_as_they_come(server: Server, client: Http1Transport) -> None:
    go_on = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await go_on.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")
        await reader.read()

    server.script = script
    async with client.stream("/watch", read_timeout_s=5) as (response, chunks):
        assert response.status == 200
        assert await anext(chunks) == b"one"
        go_on.set()
        assert [chunk async for chunk in chunks] == [b"two"]


async def test_a_stalled_stream_is_an_error(server: Server, client: Http1Transport) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.read()

    server.script = script
    async with client.stream("/watch", read_timeout_s=0.05) as (_, chunks):
        with pytest.raises(TransportError, match="not a byte"):
            await anext(chunks)


async def test_a_refused_stream_has_its_reason(server: Server, client: Http1Transport) -> None:
    server.script = server.answer(b"HTTP/1.1 410 Gone\r\nContent-Length: 3\r\n\r\nold")
    async with client.stream("/watch", read_timeout_s=5) as (response, _):
        assert response == Response(410, b"old")
