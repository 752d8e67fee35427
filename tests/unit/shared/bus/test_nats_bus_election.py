"""Three servers, replicated streams: the bus while a leader is elected."""

from __future__ import annotations

from pathlib import Path

from shared.bus.nats_bus import NatsBus
from shared.bus.port import NoResponder, NotConnected, Refused, Unknown
from shared.contracts import subjects
from tests.support.nats_cluster import NatsCluster, provision_cluster
from tests.support.waiting import eventually


async def test_fault_10_appends_continue_through_an_election_and_nothing_acknowledged_is_lost(
    tmp_path: Path,
) -> None:
    """Fault 10: during an election nats-py raises NoStreamResponseError. Here an append is repeated if that is safe, is
    Unknown if it is not, and after a read back the log holds every acknowledged record once, in order."""
    async with NatsCluster(tmp_path) as cluster, await NatsBus.connect(cluster.url) as bus:
        await provision_cluster(bus, replicas=3)
        term = await bus.append(subjects.LOG_TERM, b"t", fence_subject=subjects.LOG_TERM, fence_sequence=0)
        acknowledged: list[bytes] = []

        async def append(payload: bytes) -> None:
            try:
                await bus.append(subjects.LOG_DECISIONS, payload, fence_subject=subjects.LOG_TERM, fence_sequence=term)
                acknowledged.append(payload)
            except (Unknown, NotConnected, NoResponder, Refused):
                return  # No responder: no leader yet. Refused: 10164, an earlier one of ours may still be in flight

        for number in range(20):
            await append(b"before-%d" % number)
        leader = await cluster.leader_of(bus, subjects.STREAM_LOG)
        await leader.kill()
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
