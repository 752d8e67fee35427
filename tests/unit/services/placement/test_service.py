"""Placement's service: when it takes a term, and when a session ends."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.placement import service
from services.placement.leader.log_client import LogClient
from services.placement.service import Placement, _to_the_end
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, Incoming
from shared.contracts import subjects
from shared.contracts.log import ReadyRecord
from shared.service import running
from tests.support.waiting import eventually


@pytest.fixture
def terms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Those that sessions took, which write into the log and do nothing else."""
    taken: list[int] = []

    class Session:
        def __init__(self, _: Any, log_client: LogClient) -> None:
            self._log, self.core = log_client, type("Core", (), {"phase": "leading"})
            taken.append(log_client.term)

        async def run(self) -> None:
            while True:
                await self._log.append(ReadyRecord(term=self._log.term, excluded={}))
                await asyncio.sleep(0.05)

        async def close(self) -> None:
            """Nothing is open."""

        def reconnected(self) -> None:
            """Only its next record is refused."""

    monkeypatch.setattr(service, "LeaderSession", Session)
    monkeypatch.setattr(service, "_AGAIN_S", 0.05)
    return taken


async def test_a_term_is_not_taken_from_a_successor(
    server: EmbeddedServer, bus: NatsBus, terms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that was frozen is refused by its successor's log before its renewal of the lease is. It took the
    term back, and the successor's takeover began anew."""
    async with running(Placement, Placement.config_type(), bus_url=server.url):
        await eventually(lambda: terms, what="a term")
        lease = bus.kv(subjects.KV_LEADER)
        monkeypatch.setattr(service.Leadership, "_renew", _nothing)  # as one that does not know it yet
        await lease.put("placement", b"successor")
        with capture_logs() as logs:
            successor = LogClient(bus, "successor", "successor/1")
            await successor.take_term()
            await eventually(
                lambda: sum("successor leads" in line.get("error", "") for line in logs) > 2, what="terms not taken"
            )
            assert len(terms) == 1
            await successor.append(ReadyRecord(term=successor.term, excluded={}))


async def test_not_even_the_first_term_is_taken_before_the_lease_is_read(
    server: EmbeddedServer, terms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may be frozen right after it was elected."""
    holders = ["successor"] * 3

    async def taken_by(_: object) -> str:
        return holders.pop() if holders else ""

    monkeypatch.setattr(service.Leadership, "taken_by", taken_by)
    with capture_logs() as logs:
        async with running(Placement, Placement.config_type(), bus_url=server.url):
            await eventually(lambda: terms, what="a term")
    assert sum("successor leads" in line.get("error", "") for line in logs) == 3


async def _nothing(_: object) -> None:
    """The lease is not renewed."""


async def test_a_takeover_whose_log_is_lost_begins_anew_as_soon_as_it_is_connected_again(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """This one awaits a snapshot, and there is no watcher. Later it would touch all pending pods, and then learn it
    from its first record."""
    asked: list[Incoming] = []

    async def ask(incoming: Incoming) -> None:
        asked.append(incoming)

    async def taken() -> bool:
        try:
            return await bus.newest(subjects.LOG_TERM) is not None
        except BusError:
            return False  # the log is not there yet

    await bus.subscribe(subjects.QUERY_SNAPSHOT, ask)
    async with running(Placement, Placement.config_type(), bus_url=server.url):
        await eventually(lambda: asked, what="a request for a snapshot")
        with capture_logs() as logs:
            await server.restart(wipe=True)
            await eventually(taken, within_s=20, what="a term in the new log")
        assert any("None, is not this session's" in line.get("error", "") for line in logs)


async def test_a_session_is_closed_completely_even_if_its_end_is_cancelled() -> None:
    """A leader that woke late was told twice to end; half-closed, it continued to answer queries from a dead book."""
    began, go_on, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def close() -> None:
        began.set()
        await go_on.wait()
        closed.set()

    ending = asyncio.create_task(_to_the_end(close()))
    await began.wait()
    ending.cancel()
    go_on.set()
    with contextlib.suppress(asyncio.CancelledError):
        await ending
    assert ending.cancelled()
    assert closed.is_set()
