"""How a connection begins, and what it logs while its server is away."""

from __future__ import annotations

import asyncio
from socket import AddressFamily, SocketKind
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop
from nats.aio.client import Client
from structlog.testing import capture_logs

from shared.bus import transport
from shared.bus.connection import Connection
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, Incoming
from tests.support.waiting import eventually
from tests.unit.shared.bus.conftest import Connect


async def test_an_outage_is_a_line_at_its_start_and_one_at_its_end(server: EmbeddedServer, connect: Connect) -> None:
    """Four attempts a second fail meanwhile, and are counted."""
    with capture_logs() as logs:
        bus = await connect()
        await server.kill()
        await eventually(lambda: bus.stats.errors >= 12, within_s=30)
        await server.start()
        await eventually(lambda: bus.connected, within_s=30)
    told = [line["event"] for line in logs if line["event"].startswith("bus_")]
    assert (told[0], told[-1]) == ("bus_disconnected", "bus_reconnected")
    assert set(told[1:-1]) <= {"bus_still_unreachable"}
    assert len(told) <= 4, "on a slow machine the outage may last longer than the first interval"
    assert logs[-1]["errors"] >= 11


def is_closed(client: Client) -> bool:
    try:
        client._transport.writelines([b""])
    except ConnectionResetError:
        return True
    return False


@pytest.mark.parametrize("flushes", [True, False], ids=["", "nothing flushes any more"])
def test_what_is_published_to_a_closed_transport_of_uvloop_goes_out_on_the_next_connection(flushes: bool) -> None:
    async def talk() -> list[bytes]:
        heard: list[bytes] = []

        async def note(message: Incoming) -> None:
            heard.append(message.payload)

        async with EmbeddedServer() as server:
            listener = await NatsBus.connect(server.url, name="listener")
            await listener.subscribe("kerf.v1.test", note)
            speaker = Connection()
            await speaker.open(server.url, name="speaker")
            client = speaker.nc
            for task in [client._reading_task, *([] if flushes else [client._flusher_task])]:
                task.cancel()
                await asyncio.wait([task])
            client._transport.close()
            await eventually(lambda: is_closed(client), within_s=5)
            await speaker.publish("kerf.v1.test", b"late")
            await eventually(lambda: heard, within_s=30)
            await speaker.close()
            await listener.drain()
        return heard

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(talk()) == [b"late"]


@pytest.mark.parametrize("first", ["127.0.0.2", "192.0.2.1"], ids=["refused", "silent"])
async def test_a_slow_name_and_a_dead_first_address_keep_no_client_out(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """A resolver asks its second server after 5 s; nats-py has 2 s for the name and its addresses together."""
    monkeypatch.setattr(transport, "STEP_S", 0.3)
    port = urlsplit(server.url).port
    assert port is not None
    really, asked = asyncio.BaseEventLoop.getaddrinfo, []

    async def slowly(loop: asyncio.BaseEventLoop, host: str, *rest: Any, **options: Any) -> Any:
        if host != "nats.example":
            return await really(loop, host, *rest, **options)
        asked.append(host)
        await asyncio.wait([loop.create_future()], timeout=0.5)
        return [(AddressFamily.AF_INET, SocketKind.SOCK_STREAM, 6, "", (at, port)) for at in (first, "127.0.0.1")]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", slowly)
    connection = Connection()
    await connection.open(f"nats://nats.example:{port}", name="t", timeout_s=10.0)
    assert await connection.round_trip(2.0)
    assert asked == ["nats.example"], "at the first attempt"
    await connection.close()


async def test_a_name_without_an_address_is_said(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any, **__: Any) -> list[Any]:
        return []

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", nothing)
    with pytest.raises(BusError, match=r"nats\.example has no address"):
        await Connection().open("nats://nats.example:4222", name="t", timeout_s=1.0)
