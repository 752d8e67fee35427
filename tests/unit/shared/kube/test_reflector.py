"""How one kind is followed when the server forgets history, aborts, or is asked for a complete refresh.

The same with a real API server: tests/cluster and tests/contract/cluster_source.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import structlog

from shared.contracts.facts import Fact
from shared.kube.http1 import Http1Transport
from shared.kube.reflect import INITIAL_END
from shared.kube.reflector import Reflector, Timing
from shared.kube.resources import POD
from tests.unit.shared.kube.test_http1 import Server, client, server
from tests.unit.shared.kube.test_reflect import line, reported

__all__ = ["client", "server"]

WITHIN_S = 10
TOO_OLD = line("ERROR", kind="Status", code=410, message="too old resource version")
STAYS_OPEN = b""
PAUSES = b" "
"""The server sends no more until the test lets it continue."""


def pod(name: str, version: int) -> bytes:
    return line(
        "ADDED",
        kind="Pod",
        metadata={"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(version)},
    )


def end_of_list(version: int) -> bytes:
    return line(
        "BOOKMARK", kind="Pod", metadata={"resourceVersion": str(version), "annotations": {INITIAL_END: "true"}}
    )


class Watches:
    """Serves these watches, one after the other, each of some lines."""

    def __init__(self, server: Server, *watches: list[bytes]) -> None:
        self.server, self.watches = server, list(watches)
        self.begun_from: list[str] = []
        """The version from which each continued; "list" if it started with a list."""
        self.goes_on = asyncio.Event()
        server.script = self.script

    async def script(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await self.server.read(reader)
        query = parse_qs(urlsplit(request.split(b" ")[1].decode()).query)
        self.begun_from.append("list" if "sendInitialEvents" in query else query["resourceVersion"][0])
        lines = self.watches.pop(0)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for text in lines:
            if text == STAYS_OPEN:
                await reader.read()
            elif text == PAUSES:
                await self.goes_on.wait()
            else:
                writer.write(text + b"\n")


class Follower:
    """A running reflector, and what it has reported."""

    def __init__(self, client: Http1Transport) -> None:
        self.facts: list[Fact] = []
        self._told = asyncio.Event()
        timing = Timing(backoff_s=0.0, backoff_max_s=0.0)
        self.reflector = Reflector(client, POD, self._emit, structlog.get_logger(), timing=timing)

    def _emit(self, facts: list[Fact]) -> None:
        self.facts += facts
        self._told.set()

    async def has_reported(self, name: str) -> list[tuple[str, str, bool]]:
        """All that was reported, as soon as this pod is among it."""
        async with asyncio.timeout(WITHIN_S):
            while not any(fact.object.metadata.name == name for fact in self.facts):
                self._told.clear()
                await self._told.wait()
        return reported(self.facts)


@contextlib.asynccontextmanager
async def following(client: Http1Transport) -> AsyncIterator[Follower]:
    follower = Follower(client)
    task = asyncio.create_task(follower.reflector.run())
    try:
        yield follower
    finally:
        task.cancel()


async def test_a_version_that_the_server_has_forgotten_is_followed_by_a_new_list(
    server: Server, client: Http1Transport
) -> None:
    """Deletions in the gap are reported by the new list, as not certain."""
    listed, anew = (
        [pod("a", 5), pod("b", 7), end_of_list(10)],
        [pod("b", 7), end_of_list(30), pod("last", 31), STAYS_OPEN],
    )
    watches = Watches(server, listed, [TOO_OLD], anew)
    async with following(client) as follower:
        assert (await follower.has_reported("last"))[2:] == [("gone", "a@5", False), ("put", "last@31", True)]
        assert watches.begun_from == ["list", "10", "list"]


async def test_a_watch_that_ends_is_resumed(server: Server, client: Http1Transport) -> None:
    watches = Watches(server, [pod("a", 5), end_of_list(10), pod("b", 12)], [pod("last", 13), STAYS_OPEN])
    async with following(client) as follower:
        await follower.has_reported("last")
        assert watches.begun_from == ["list", "12"]


async def test_an_aborted_list_is_started_again_and_reports_no_deletion(server: Server, client: Http1Transport) -> None:
    whole = [pod("a", 5), pod("b", 7), end_of_list(30), pod("last", 31), STAYS_OPEN]
    watches = Watches(server, [pod("a", 5), end_of_list(10)], [TOO_OLD], [pod("b", 7)], whole)
    async with following(client) as follower:
        assert [kind for kind, _, _ in await follower.has_reported("last")] == ["put", "put", "put"]
        assert watches.begun_from == ["list", "10", "list", "list"]


async def test_a_refresh_waits_for_a_list_that_started_after_it(server: Server, client: Http1Transport) -> None:
    """A watch may lag; a list does not. Half a list is none."""
    watches = Watches(
        server, [pod("a", 5), end_of_list(10), STAYS_OPEN], [pod("b", 29), PAUSES, end_of_list(30), STAYS_OPEN]
    )
    async with following(client) as follower, asyncio.timeout(WITHIN_S):
        await follower.has_reported("a")
        await follower.reflector.wait_synced()
        fresh = asyncio.create_task(follower.reflector.refresh())
        await follower.has_reported("b")
        for _ in range(10):
            await asyncio.sleep(0)
        assert not fresh.done()
        watches.goes_on.set()
        await fresh
        assert reported(follower.facts)[1:] == [("put", "b@29", True), ("gone", "a@5", False)]
        assert watches.begun_from == ["list", "list"]
