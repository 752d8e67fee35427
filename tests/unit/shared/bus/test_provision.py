"""Streams get the replicas of the setting, on real servers: nothing that was acknowledged is lost, and fences hold."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import NoResponder, NotConnected, Refused, Unknown
from shared.bus.provision import provision, scale, wanted
from shared.contracts import subjects
from tests.support.nats_cluster import NatsCluster, provision_cluster
from tests.support.waiting import eventually

NAMES = {config["name"] for config in wanted()}


async def replicas(bus: NatsBus) -> dict[str, int]:
    """How many current copies each stream has."""
    found = {}
    for name in NAMES:
        info = await bus.js.call(f"STREAM.INFO.{name}", None, dict)
        others = info["cluster"].get("replicas") or ()
        found[name] = 1 + sum(1 for other in others if other["current"])
    return found


async def test_streams_go_from_one_to_three_replicas_and_back_under_load(tmp_path: Path) -> None:
    async with NatsCluster(tmp_path) as cluster, await NatsBus.connect(cluster.url) as bus:
        await provision_cluster(bus, replicas=1)
        assert await replicas(bus) == dict.fromkeys(NAMES, 1)
        term = await bus.append(subjects.LOG_TERM, b"t", fence_subject=subjects.LOG_TERM, fence_sequence=0)
        acknowledged: list[bytes] = []
        stop = asyncio.Event()

        async def append() -> None:
            number = 0
            while not stop.is_set():
                payload = b"%d" % (number := number + 1)
                try:
                    await bus.append(
                        subjects.LOG_DECISIONS, payload, fence_subject=subjects.LOG_TERM, fence_sequence=term
                    )
                    acknowledged.append(payload)
                except (Unknown, NotConnected, NoResponder, Refused):
                    await asyncio.sleep(0)  # Refused: an earlier one with an unknown result is still in flight

        writing = asyncio.create_task(append())
        for wanted_replicas in (3, 1, 3):
            before = len(acknowledged)

            async def scaled(number: int = wanted_replicas) -> bool:
                return not await scale(bus, replicas=number) and await replicas(bus) == dict.fromkeys(NAMES, number)

            await eventually(scaled, within_s=40, every_s=0.2)
            await eventually(lambda least=before: len(acknowledged) > least + 20)
        stop.set()
        await writing
        stored = [entry.payload async for entry in bus.read_log() if entry.subject == subjects.LOG_DECISIONS]
        assert [payload for payload in stored if payload in set(acknowledged)] == acknowledged
        with pytest.raises(Refused):
            await bus.append(subjects.LOG_TERM, b"u", fence_subject=subjects.LOG_TERM, fence_sequence=term - 1)


async def test_a_server_alone_has_one_replica_and_says_what_waits() -> None:
    async with EmbeddedServer() as server, await NatsBus.connect(server.url) as bus:
        assert set(await provision(bus, replicas=3)) == NAMES
        left = await scale(bus, replicas=3)
        assert left == dict.fromkeys(NAMES, "the NATS server is not in a cluster")
        assert await scale(bus, replicas=1) == {}
