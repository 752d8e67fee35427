"""Three servers, replicated streams: the bus while a leader is elected."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator

import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, NotConnected, Refused, Unknown
from shared.bus.provision import provision
from shared.contracts import subjects
from tests.support.waiting import eventually


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture
async def cluster() -> AsyncIterator[list[EmbeddedServer]]:
    ports = free_ports(3)
    routes = json.dumps([f"nats-route://127.0.0.1:{port}" for port in ports])
    servers = [
        EmbeddedServer(
            server_name=f"n{i}",
            extra_config=f"cluster {{ name: kerf, listen: '127.0.0.1:{port}', routes: {routes}, no_advertise: true }}",
        )
        for i, port in enumerate(ports)
    ]
    try:
        await asyncio.gather(*(server.start() for server in servers))
        yield servers
    finally:
        await asyncio.gather(*(server.stop() for server in servers))


async def test_fault_10_appends_continue_through_an_election_and_nothing_acknowledged_is_lost(
    cluster: list[EmbeddedServer],
) -> None:
    """Fault 10: during an election nats-py raises NoStreamResponseError. Here an append is repeated if that is safe, is
    Unknown if it is not, and after a read back the log holds every acknowledged record once, in order."""
    urls = ",".join(server.url for server in cluster)
    async with await NatsBus.connect(urls) as bus:

        async def provisioned() -> bool:
            with contextlib.suppress(BusError):
                await provision(bus, replicas=3)
                return True
            return False

        await eventually(provisioned, within_s=40)
        term = await bus.append(subjects.LOG_TERM, b"t", fence_subject=subjects.LOG_TERM, fence_sequence=0)
        acknowledged: list[bytes] = []

        async def append(payload: bytes) -> None:
            try:
                await bus.append(subjects.LOG_DECISIONS, payload, fence_subject=subjects.LOG_TERM, fence_sequence=term)
                acknowledged.append(payload)
            except (Unknown, NotConnected, Refused):
                return  # Refused: 10164, an earlier one of ours with an unknown result is still in flight

        for number in range(20):
            await append(b"before-%d" % number)
        leader = (await bus.js.call("STREAM.INFO.KERF_LOG", None, dict))["cluster"]["leader"]
        await cluster[int(leader[1])].kill()
        for number in range(20):
            await append(b"during-%d" % number)

        async def goes_on() -> bool:
            count = len(acknowledged)
            await append(b"after")
            return len(acknowledged) > count

        await eventually(goes_on, within_s=40)
        stored = [entry.payload async for entry in bus.read_log(start=term + 1)]
        assert set(acknowledged) <= set(stored)
        positions = [stored.index(payload) for payload in acknowledged]
        assert positions == sorted(positions)
