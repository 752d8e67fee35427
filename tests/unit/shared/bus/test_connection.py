"""What a connection logs while its server is away."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from nats.aio.client import Client
from structlog.testing import capture_logs

from shared.bus.connection import Connection
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
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
