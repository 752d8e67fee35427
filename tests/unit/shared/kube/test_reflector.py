"""How one kind is followed when the server forgets history, aborts, or is asked for a complete refresh.

The same with a real API server: tests/cluster and tests/contract/cluster_source.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import pytest
import structlog

from shared.contracts.facts import Fact
from shared.kube.http1 import Http1Transport
from shared.kube.reflect import INITIAL_END
from shared.kube.reflector import Reflector
from shared.kube.refreshes import SHORT_WATCHES
from shared.kube.resources import POD
from shared.kube.timing import CLOSE, SHORT_WATCH_S, Timing
from tests.support.waiting import eventually
from tests.unit.shared.kube.test_http1 import Server, client, server
from tests.unit.shared.kube.test_reflect import line, reported

__all__ = ["client", "server"]

WITHIN_S = 10
TOO_OLD = line("ERROR", kind="Status", code=410, message="too old resource version")
GOES_DOWN = line("ERROR", kind="Status", code=503, message="the server is shutting down")
STAYS_OPEN = b""
PAUSES = b" "
"""The server sends no more until the test lets it continue."""


def pod(name: str, version: int) -> bytes:
    return line(
        "ADDED",
        kind="Pod",
        metadata={"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(version)},
    )


def progress(version: int) -> bytes:
    return line("BOOKMARK", kind="Pod", metadata={"resourceVersion": str(version)})


def end_of_list(version: int) -> bytes:
    return line(
        "BOOKMARK", kind="Pod", metadata={"resourceVersion": str(version), "annotations": {INITIAL_END: "true"}}
    )


class Watches:
    """Serves these watches, one after the other, each of some lines. `at`: the version that the server says it is
    at."""

    def __init__(self, server: Server, *watches: list[bytes], at: int = 0) -> None:
        self.server, self.watches, self.at = server, list(watches), at
        self.rises = 0
        """By how much the server's version rises each time that it is asked for it."""
        self.begun_from: list[str] = []
        """The version from which each continued; "list" if it started with a list."""
        self.seconds: list[int] = []
        """How long each was to be kept open."""
        self.goes_on = asyncio.Event()
        server.script = self.script

    async def script(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await self.server.read(reader)
        query = parse_qs(urlsplit(request.split(b" ")[1].decode()).query)
        if "watch" not in query:
            assert query == {"limit": ["1"]}
            self.at += self.rises
            body = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": str(self.at)}, "items": []}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return
        self.seconds.append(int(query["timeoutSeconds"][0]))
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

    def __init__(self, client: Http1Transport, timing: Timing) -> None:
        self.facts: list[Fact] = []
        self._told = asyncio.Event()
        self.reflector = Reflector(client, POD, self._emit, structlog.get_logger(), timing=timing)

    def _emit(self, facts: list[Fact]) -> None:
        self.facts += facts
        self._told.set()

    async def has_listed(self) -> None:
        """The first list, which has pod a."""
        await self.has_reported("a")
        await self.reflector.wait_synced()

    async def has_reported(self, name: str) -> list[tuple[str, str, bool]]:
        """All that was reported, as soon as this pod is among it."""
        async with asyncio.timeout(WITHIN_S):
            while not any(fact.object.metadata.name == name for fact in self.facts):
                self._told.clear()
                await self._told.wait()
        return reported(self.facts)


@contextlib.asynccontextmanager
async def following(
    client: Http1Transport, *, relist_most: int = 100, timing: Timing | None = None
) -> AsyncIterator[Follower]:
    follower = Follower(client, timing or Timing(backoff_s=0.0, backoff_max_s=0.0, relist_most=relist_most))
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
        await follower.has_listed()
        fresh = asyncio.create_task(follower.reflector.refresh())
        await follower.has_reported("b")
        await unmet(fresh)
        watches.goes_on.set()
        await fresh
        assert reported(follower.facts)[1:] == [("put", "b@29", True), ("gone", "a@5", False)]
        assert watches.begun_from == ["list", "list"]


async def unmet(wish: asyncio.Task[None]) -> None:
    """Whatever could meet it by now has run."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert not wish.done()


@pytest.mark.parametrize("last", [progress(40), pod("c", 41)])
async def test_a_refresh_of_many_objects_waits_for_a_watch_that_has_passed_the_servers_version(
    server: Server, client: Http1Transport, last: bytes
) -> None:
    watches = Watches(
        server, [pod("a", 5), end_of_list(10), STAYS_OPEN], [pod("b", 39), PAUSES, last, STAYS_OPEN], at=40
    )
    async with following(client, relist_most=0) as follower, asyncio.timeout(WITHIN_S):
        await follower.has_listed()
        fresh = asyncio.create_task(follower.reflector.refresh())
        await follower.has_reported("b")
        await unmet(fresh)
        watches.goes_on.set()
        await fresh
        assert watches.begun_from == ["list", "10"]
        assert watches.seconds[1] == SHORT_WATCH_S
        assert follower.reflector.lists == 1


async def test_where_no_watch_passes_the_servers_version_there_is_a_list_and_lists_alone_for_a_while(
    server: Server, client: Http1Transport
) -> None:
    short: list[list[bytes]] = [[progress(20 + i)] for i in range(SHORT_WATCHES)]
    watches = Watches(
        server,
        [pod("a", 5), end_of_list(10), STAYS_OPEN],
        *short,
        [end_of_list(40), STAYS_OPEN],
        [end_of_list(41), STAYS_OPEN],
        at=40,
    )
    async with following(client, relist_most=-1) as follower, asyncio.timeout(WITHIN_S):
        await follower.has_listed()
        await follower.reflector.refresh()
        assert watches.begun_from == ["list", "10", "20", "list"]
        assert reported(follower.facts)[1:] == [("gone", "a@5", False)]
        await follower.reflector.refresh()
        assert watches.begun_from[4:] == ["list"]


async def test_watches_that_break_lead_to_no_list(server: Server, client: Http1Transport) -> None:
    """As those of a server that is restarted: it would have to list everything for everybody."""
    broken: list[list[bytes]] = [[progress(20), GOES_DOWN] for _ in range(SHORT_WATCHES + 1)]
    watches = Watches(server, [pod("a", 5), end_of_list(10), STAYS_OPEN], *broken, [progress(40), STAYS_OPEN], at=40)
    async with following(client, relist_most=0) as follower, asyncio.timeout(WITHIN_S):
        await follower.has_listed()
        await follower.reflector.refresh()
        assert follower.reflector.lists == 1
        assert len(watches.begun_from) == SHORT_WATCHES + 3


async def test_a_watch_that_breaks_with_the_event_that_passed_the_version_has_passed_it(
    server: Server, client: Http1Transport
) -> None:
    watches = Watches(
        server,
        [pod("a", 5), end_of_list(10), STAYS_OPEN],
        [pod("b", 45) + b"\n" + GOES_DOWN],
        [STAYS_OPEN],
        at=40,
    )
    async with following(client, relist_most=0) as follower, asyncio.timeout(WITHIN_S):
        await follower.has_listed()
        await follower.reflector.refresh()
        assert watches.begun_from in (["list", "10"], ["list", "10", "45"])
        assert follower.reflector.lists == 1


async def test_the_version_to_pass_stays_while_the_server_goes_on(server: Server, client: Http1Transport) -> None:
    """Else a server that says rarely where its watches are is always ahead of them."""
    watches = Watches(
        server, [pod("a", 5), end_of_list(10), STAYS_OPEN], [progress(39)], [progress(41), STAYS_OPEN], at=-60
    )
    watches.rises = 100
    async with following(client, relist_most=0) as follower, asyncio.timeout(WITHIN_S):
        await follower.has_listed()
        await follower.reflector.refresh()
        assert watches.begun_from == ["list", "10", "39"]


async def test_where_nothing_has_happened_the_state_is_complete(server: Server, client: Http1Transport) -> None:
    """A server sends no bookmark of the version that a watch began with."""
    Watches(server, [pod("a", 5), end_of_list(10), STAYS_OPEN], [STAYS_OPEN], at=10)
    async with following(client, relist_most=0) as follower, asyncio.timeout(WITHIN_S):
        await follower.has_listed()
        await follower.reflector.refresh()
        assert follower.reflector.lists == 1


async def test_a_version_that_is_forgotten_during_a_refresh_is_followed_by_a_list(
    server: Server, client: Http1Transport
) -> None:
    watches = Watches(
        server,
        [pod("a", 5), end_of_list(10), STAYS_OPEN],
        [TOO_OLD],
        [pod("b", 45), end_of_list(50), STAYS_OPEN],
        at=40,
    )
    async with following(client, relist_most=0) as follower, asyncio.timeout(WITHIN_S):
        await follower.has_listed()
        await follower.reflector.refresh()
        assert watches.begun_from == ["list", "10", "list"]
        assert reported(follower.facts)[1:] == [("put", "b@45", True), ("gone", "a@5", False)]


async def test_a_server_that_is_behind_what_is_known_is_listed(server: Server, client: Http1Transport) -> None:
    """Its storage was restored: a watch from our version has passed its version and has seen nothing."""
    watches = Watches(server, [pod("a", 5), end_of_list(10), STAYS_OPEN], [end_of_list(8), STAYS_OPEN], at=8)
    async with following(client, relist_most=0) as follower, asyncio.timeout(WITHIN_S):
        await follower.has_listed()
        await follower.reflector.refresh()
        assert watches.begun_from == ["list", "list"]


async def test_a_wish_during_a_refresh_lets_it_end_and_comes_next(server: Server, client: Http1Transport) -> None:
    """Else wishes that come faster than a list takes would never be met."""
    watches = Watches(
        server,
        [pod("a", 5), end_of_list(10), STAYS_OPEN],
        [pod("b", 29), PAUSES, end_of_list(30), STAYS_OPEN],
        [pod("c", 35), end_of_list(36), STAYS_OPEN],
    )
    async with following(client) as follower, asyncio.timeout(WITHIN_S):
        await follower.has_listed()
        first = asyncio.create_task(follower.reflector.refresh())
        await follower.has_reported("b")
        second = asyncio.create_task(follower.reflector.refresh())
        await unmet(second)
        watches.goes_on.set()
        await first
        assert not second.done()
        await second
        assert watches.begun_from == ["list", "list", "list"]
        assert "c@35" in {name for _, name, _ in reported(follower.facts)}


async def test_a_wish_during_a_refresh_that_has_fallen_silent_begins_it_anew(
    server: Server, client: Http1Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.kube.refreshes.QUIET_S", 0.0)
    watches = Watches(
        server,
        [pod("a", 5), end_of_list(10), STAYS_OPEN],
        [pod("b", 29), STAYS_OPEN],
        [pod("c", 35), end_of_list(36), STAYS_OPEN],
    )
    async with following(client) as follower, asyncio.timeout(WITHIN_S):
        await follower.has_listed()
        first = asyncio.create_task(follower.reflector.refresh())
        await follower.has_reported("b")
        await follower.reflector.refresh()
        await first
        assert watches.begun_from == ["list", "list", "list"]


async def test_a_wish_ends_the_wait_that_a_refusing_server_has_asked_for(
    server: Server, client: Http1Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single refusal would keep back for its Retry-After what the server has known since."""
    monkeypatch.setattr("shared.kube.http1_connection.MAX_RETRY_AFTER_S", 1000.0)
    server.script = server.answer(b"HTTP/1.1 429 Slow\r\nRetry-After: 1000\r\nContent-Length: 0\r\n\r\n")
    async with following(client) as follower, asyncio.timeout(WITHIN_S):
        await eventually(lambda: follower.reflector.problem.startswith("429"), what="the refusal")
        Watches(server, [pod("a", 5), end_of_list(10), STAYS_OPEN])
        await follower.reflector.refresh()
        assert reported(follower.facts) == [("put", "a@5", True)]


async def test_a_kind_that_pods_wait_for_is_followed_by_short_watches_after_a_list_that_has_its_time(
    server: Server, client: Http1Transport
) -> None:
    """The watch that began with the list would go on for minutes, and a server that hangs be noticed as late."""
    watches = Watches(
        server, [pod("a", 5), end_of_list(10), STAYS_OPEN], [progress(12)], [pod("b", 13), progress(14), STAYS_OPEN]
    )
    async with following(client, timing=CLOSE) as follower:
        await follower.has_reported("b")
        assert watches.begun_from == ["list", "10", "12"]
        assert follower.reflector.lists == 1
        assert watches.seconds[0] >= CLOSE.list_s
        assert max(watches.seconds[1:]) < CLOSE.silence_s
