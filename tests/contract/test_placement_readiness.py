"""A replica of placement is ready when a leader places pods, whichever replica that is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import msgspec
import pytest

from services.placement import service as placement_service
from shared.bus.embedded import EmbeddedServer
from shared.service import Context, Lifecycle, load, running
from tests.support.waiting import eventually


def part(replica: Context, name: str) -> tuple[bool, str]:
    found = replica.health.report()["parts"][name]
    return found["ok"], found["detail"]


class Started:
    def __init__(self, made: AsyncExitStack, nats_url: str) -> None:
        self._made, self._settings = made, Lifecycle(nats_url=nats_url)

    async def start(self, name: str, **config: str) -> Context:
        kind = load(name)
        return await self._made.enter_async_context(
            running(kind, msgspec.convert(config, kind.config_type), lifecycle=self._settings)
        )


@pytest.fixture
async def started(nats: EmbeddedServer) -> AsyncIterator[Started]:
    async with AsyncExitStack() as made:
        yield Started(made, nats.url)


async def test_replicas_are_ready_when_one_of_them_places_pods(started: Started) -> None:
    """Without a watcher the leader knows no cluster."""
    replicas = [await started.start("placement"), await started.start("placement")]
    await eventually(
        lambda: sorted(part(one, "role")[1].partition(" of")[0] for one in replicas) == ["leader", "standby"],
        what="a leader and a standby",
    )
    assert [part(one, "service") for one in replicas] == [(False, "no leader places pods yet")] * 2
    assert not any(one.health.ready for one in replicas)
    await started.start("watcher", source="simulated")
    await eventually(lambda: all(one.health.ready for one in replicas), what="both are ready")


async def test_a_replica_is_not_unready_for_ever_where_nobody_places_pods(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a rollback from a version that cannot lead would wait for its leader."""
    monkeypatch.setattr(placement_service, "UNREADY_MOST_S", 1.0)
    replica = await started.start("placement")
    assert not replica.health.ready
    await eventually(lambda: replica.health.ready, what="it is ready")
    assert part(replica, "service") == (True, "no leader has placed pods for 1 s")
    await started.start("watcher", source="simulated")
    await eventually(lambda: part(replica, "service") == (True, "a leader places pods"), what="it places pods")
