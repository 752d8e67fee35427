"""A replica of placement is ready when a leader places pods, whichever replica that is."""

from __future__ import annotations

from contextlib import AsyncExitStack

import msgspec

from shared.bus.embedded import EmbeddedServer
from shared.service import Context, Lifecycle, load, running
from tests.support.waiting import eventually


def part(replica: Context, name: str) -> tuple[bool, str]:
    found = replica.health.report()["parts"][name]
    return found["ok"], found["detail"]


async def test_replicas_are_ready_when_one_of_them_places_pods(nats: EmbeddedServer) -> None:
    """Without a watcher the leader knows no cluster."""
    async with AsyncExitStack() as made:
        settings = Lifecycle(nats_url=nats.url)

        async def start(name: str, **config: str) -> Context:
            kind = load(name)
            return await made.enter_async_context(
                running(kind, msgspec.convert(config, kind.config_type), lifecycle=settings)
            )

        replicas = [await start("placement"), await start("placement")]
        await eventually(
            lambda: sorted(part(one, "role")[1].partition(" of")[0] for one in replicas) == ["leader", "standby"],
            what="a leader and a standby",
        )
        assert [part(one, "service") for one in replicas] == [(False, "no leader places pods yet")] * 2
        assert not any(one.health.ready for one in replicas)
        await start("watcher", source="simulated")
        await eventually(lambda: all(one.health.ready for one in replicas), what="both are ready")
