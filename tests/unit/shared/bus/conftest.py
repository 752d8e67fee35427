"""A real NATS server for each test (it starts in 25 ms), and clients of it that are closed at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.provision import provision

Connect = Callable[..., Awaitable[NatsBus]]


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer() as running:
        yield running


@pytest.fixture
async def connect(server: EmbeddedServer) -> AsyncIterator[Connect]:
    made: list[NatsBus] = []

    async def open_one(url: str = "", **options: object) -> NatsBus:
        bus = await NatsBus.connect(url or server.url, **{"timeout_s": 10.0, "resync_s": 30.0} | options)  # type: ignore[arg-type]
        made.append(bus)
        return bus

    yield open_one
    for bus in made:
        await bus.close()


@pytest.fixture
async def bus(connect: Connect) -> NatsBus:
    """A client of a server on which all streams and buckets exist."""
    client = await connect()
    await provision(client)
    return client
