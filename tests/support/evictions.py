"""A watcher that records requested evictions and executes none of them."""

from __future__ import annotations

from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.commands import Answers, Evict, EvictBatch


async def evictions(bus: NatsBus) -> list[Evict]:
    """The evictions that are requested from now on, as they come."""
    asked: list[Evict] = []

    async def watcher(incoming: Incoming) -> None:
        asked.extend(decode(incoming.payload, EvictBatch).evictions)
        await bus.respond(incoming, encode(Answers()))

    await bus.subscribe(subjects.CMD_EVICT, watcher)
    return asked
