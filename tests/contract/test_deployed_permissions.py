"""Every call that a service makes over NATS, with exactly the permissions of k8s/nats.conf."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, Incoming, KvEntry, LogEntry
from shared.bus.provision import provision
from shared.contracts import metrics_queries, queries, subjects
from shared.service import Leadership
from tests.support.waiting import eventually

CONF = Path(__file__).parents[2] / "k8s" / "nats.conf"
USERS = ("placement", "watcher", "node_agent", "preemptor", "metrics", "reader", "operator")


class Clients:
    """One client for each user."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.made: dict[str, NatsBus] = {}

    async def as_(self, user: str) -> NatsBus:
        if user not in self.made:
            inbox = "_INBOX" if user in ("reader", "operator") else f"_INBOX_{user}"
            self.made[user] = await NatsBus.connect(
                f"nats://{user}:secret@127.0.0.1:{self.server.port}", inbox_prefix=inbox, timeout_s=10
            )
        return self.made[user]


@pytest.fixture
async def clients(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Clients]:
    for user in USERS:
        monkeypatch.setenv(f"KERF_NATS_{user.upper()}", "secret")
    async with EmbeddedServer(config_file=CONF) as server:
        clients = Clients(server)
        await provision(await clients.as_("placement"))
        yield clients
        for bus in clients.made.values():
            await bus.close()


async def test_placement_can_lead_write_read_and_watch(clients: Clients) -> None:
    bus, agent = await clients.as_("placement"), await clients.as_("node_agent")
    term = await bus.append(subjects.LOG_TERM, b"{}", fence_subject=subjects.LOG_TERM, fence_sequence=0)
    assert [entry.sequence async for entry in bus.read_log()] == [term]
    assert await bus.log_end() == term
    heard: list[KvEntry] = []

    async def node(entry: KvEntry) -> None:
        heard.append(entry)

    await bus.kv(subjects.KV_NODES).watch(node)
    await agent.kv(subjects.KV_NODES).put("n1", b"{}")
    await eventually(lambda: heard)
    said: list[str] = []

    async def elected() -> None:
        said.append("elected")

    async def lost() -> None:
        said.append("lost")

    leadership = Leadership(bus, "placement", "p1", on_elected=elected, on_lost=lost)
    task = asyncio.create_task(leadership.run())
    await eventually(lambda: said == ["elected"])
    task.cancel()
    await leadership.release()
    bus.publish_event(subjects.event_in_namespace("placement", "decided", "team"), b"{}", "1")
    assert await bus._events.flushed(5)
    assert bus.stats.denied == 0


async def test_an_agent_can_put_its_inventory_and_answer_placement(clients: Clients) -> None:
    bus, placement = await clients.as_("node_agent"), await clients.as_("placement")
    kv = bus.kv(subjects.KV_NODES)
    revision = await kv.put("n1", b"{}")
    assert (await kv.get("n1")).revision == revision

    async def answer(incoming: Incoming) -> None:
        await bus.respond(incoming, b"yes")

    await bus.subscribe(subjects.node_command("n1", "sync"), answer)
    assert await placement.request(subjects.node_command("n1", "sync"), b"") == b"yes"
    bus.publish_event(subjects.event_in_namespace("slice", "released", "team"), b"{}", "1")
    assert await bus._events.flushed(5)
    assert bus.stats.denied == 0


async def test_the_watcher_can_feed_and_answer_but_not_read_the_log(clients: Clients) -> None:
    bus, placement = await clients.as_("watcher"), await clients.as_("placement")
    came: list[bytes] = []

    async def batch(incoming: Incoming) -> None:
        came.append(incoming.payload)

    async def bind(incoming: Incoming) -> None:
        await bus.respond(incoming, b"bound")

    await placement.subscribe(subjects.FEED_ALL, batch)
    await bus.subscribe(subjects.CMD_BIND, bind, queue="watcher", concurrency=4)
    await bus.publish(subjects.feed("e1"), b"batch")
    assert await placement.request(subjects.CMD_BIND, b"") == b"bound"
    await eventually(lambda: came == [b"batch"])
    assert bus.stats.denied == 0
    with pytest.raises(BusError, match="not permitted"):
        await bus.log_end()


async def test_metrics_can_follow_events_and_query_placement(clients: Clients) -> None:
    bus, placement = await clients.as_("metrics"), await clients.as_("placement")
    placement.publish_event(subjects.event_in_namespace("pod", "bound", "team"), b"{}", "1")
    assert await placement._events.flushed(5)
    came: list[LogEntry] = []

    async def event(entry: LogEntry) -> None:
        came.append(entry)

    async def status(incoming: Incoming) -> None:
        await placement.respond(incoming, b"{}")

    async def echo(incoming: Incoming) -> None:
        await bus.respond(incoming, b"{}")

    await bus.follow_events(event)
    for query in (queries.STATUS, queries.QUEUES, queries.WHY, queries.WHAT_IF):
        await placement.subscribe(query.subject, status)
        assert await bus.request(query.subject, b"{}") == b"{}"
    await bus.subscribe(subjects.USAGE_ALL, status)
    for query in (metrics_queries.USAGE, metrics_queries.COST, metrics_queries.TRACE):
        await bus.subscribe(query.subject, echo)
        assert await (await clients.as_("reader")).request(query.subject, b"{}") == b"{}"
    await eventually(lambda: came)
    assert bus.stats.denied == 0


async def test_the_preemptor_can_request_advice_and_reservations(clients: Clients) -> None:
    bus, placement = await clients.as_("preemptor"), await clients.as_("placement")

    async def answer(incoming: Incoming) -> None:
        await placement.respond(incoming, b"yes")

    for subject in (queries.ADVISE.subject, subjects.CMD_RESERVE, subjects.CMD_ABANDON):
        await placement.subscribe(subject, answer)
        assert await bus.request(subject, b"") == b"yes"
    assert bus.stats.denied == 0


@pytest.mark.parametrize("user", ["watcher", "node_agent", "preemptor", "metrics", "reader", "operator"])
async def test_only_placement_may_write_the_log_and_order_bindings(clients: Clients, user: str) -> None:
    bus = await clients.as_(user)
    with pytest.raises(BusError, match=r"not permitted to publish to kerf.v1.log.term"):
        await bus._connection.request(subjects.LOG_TERM, b"{}", timeout_s=10)
    with pytest.raises(BusError, match=r"not permitted to publish to kerf.v1.cmd.bind"):
        await bus.request(subjects.CMD_BIND, b"{}", timeout_s=10)


async def test_a_reader_receives_events_but_no_commands(clients: Clients) -> None:
    bus, placement = await clients.as_("reader"), await clients.as_("placement")
    came: list[str] = []

    async def event(incoming: Incoming) -> None:
        came.append(incoming.subject)

    await bus.subscribe(subjects.EVENTS_ALL, event)
    placement.publish_event(subjects.event_in_namespace("pod", "bound", "team"), b"{}", "1")
    await eventually(lambda: came)
    for subject in (subjects.CMD_BIND, subjects.LOG_ALL, subjects.FEED_ALL, "_INBOX_placement.>"):
        with pytest.raises(BusError, match="not permitted to subscribe"):
            await bus.subscribe(subject, event)
