"""k8s/nats.conf on a real server: each service can work with its own user, and cannot write what belongs to others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from services.metrics.service import MetricsService
from services.node_agent.config import Config
from services.node_agent.service import NodeAgent
from services.placement.leader.log_client import LogClient
from services.placement.service import SERVICE as Placement
from services.preemptor.service import Preemptor
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, Incoming
from shared.bus.provision import provision
from shared.contracts import metrics_queries, subjects
from shared.contracts.base import decode, encode
from shared.contracts.commands import Answers, Evict, EvictBatch
from shared.contracts.log import DecisionBatch, ReadyRecord, TermRecord
from shared.contracts.metrics_queries import UsageAnswer, UsageQuery
from shared.contracts.node_commands import Accepted, NodeCordon, NodeCordonAnswer, NodeRelease, NodeSync, NodeSyncAnswer
from shared.contracts.preemption import Plan, Reserve, Reserved, Spared
from shared.contracts.queries import STATUS as QUERY_STATUS
from shared.model.hollow_node import HollowNode
from shared.service import Lifecycle, running
from tests.support.waiting import eventually

CONF = Path(__file__).resolve().parents[2] / "k8s" / "nats.conf"
USERS = ("placement", "watcher", "node_agent", "preemptor", "metrics", "reader", "operator")


@pytest.fixture
async def nats(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EmbeddedServer]:
    for user in USERS:
        monkeypatch.setenv(f"KERF_NATS_{user.upper()}", f"secret-of-{user}")
    async with EmbeddedServer(config_file=CONF) as server:
        yield server


def url(nats: EmbeddedServer, user: str, password: str = "") -> str:
    return f"nats://{user}:{password or f'secret-of-{user}'}@127.0.0.1:{nats.port}"


async def connect(nats: EmbeddedServer, user: str) -> NatsBus:
    prefix = "_INBOX" if user in ("reader", "operator") else f"_INBOX_{user}"
    return await NatsBus.connect(url(nats, user), inbox_prefix=prefix)


def lifecycle(user: str) -> Lifecycle:
    return Lifecycle(nats_inbox_prefix=f"_INBOX_{user}")


async def test_a_connection_without_the_password_is_refused(nats: EmbeddedServer) -> None:
    with pytest.raises(BusError):
        await NatsBus.connect(url(nats, "placement", "guess"), timeout_s=1)


async def test_only_placement_appends_to_the_log(nats: EmbeddedServer) -> None:
    """The fence does not help against a client that may write anything."""
    async with await connect(nats, "placement") as placement:
        await provision(placement)
        assert await placement.append(subjects.LOG_TERM, b"{}", fence_subject=subjects.LOG_TERM, fence_sequence=0) > 0
        end = await placement.log_end()
        for user in USERS[1:]:
            async with await connect(nats, user) as other:
                await other.publish(subjects.LOG_DECISIONS, b"{}")
                await other.alive()
        assert await placement.log_end() == end


async def test_only_placement_writes_the_logs_mark(nats: EmbeddedServer) -> None:
    """With a false mark a leader would delete its log, or trust one that has lost records."""
    async with await connect(nats, "placement") as placement:
        await provision(placement)
        found = await placement.read_mark()
        for user in USERS[1:]:
            async with await connect(nats, user) as other:
                await other.publish(f"$KV.{subjects.KV_MARK}.{subjects.LOG_MARK}", b"{}")
                await other.alive()
        assert await placement.read_mark() == found
        revision = await placement.write_mark(b"{}", found[1])
        assert await placement.read_mark() == (b"{}", revision)


async def test_only_placement_deletes_the_log_and_no_other_stream(nats: EmbeddedServer) -> None:
    """Placement recreates a log that has lost records. No service deletes the mark, which shows the loss."""
    async with await connect(nats, "placement") as placement:
        await provision(placement)
        for user in USERS[1:]:
            async with await connect(nats, user) as other:
                await other.publish(f"$JS.API.STREAM.DELETE.{subjects.STREAM_LOG}", b"")
                await other.alive()
        for stream in (f"KV_{subjects.KV_MARK}", f"KV_{subjects.KV_NODES}", subjects.STREAM_EVENTS):
            await placement.publish(f"$JS.API.STREAM.DELETE.{stream}", b"")
        await placement.alive()
        assert await provision(placement) == (), "all streams are there"
        first = 10**15
        await placement.begin_log_anew(first)
        term = await placement.append(subjects.LOG_TERM, b"{}", fence_subject=subjects.LOG_TERM, fence_sequence=0)
        assert term == first


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        *((user, subjects.release("n1")) for user in USERS if user != "node_agent"),
        *((user, subjects.ack("instance", "grant", "n1")) for user in USERS),
        *((user, subjects.ack("instance", "sync", "n1")) for user in USERS),
    ],
)
async def test_only_agents_may_publish_releases_and_answers_to_placement(
    nats: EmbeddedServer, user: str, subject: str
) -> None:  # fmt: skip
    """Released capacity is given to other pods.

    An agent may only publish answers to grants and syncs as the reply to a command, and other services not at all.
    """
    heard: list[tuple[str, bytes]] = []

    async def handler(incoming: Incoming) -> None:
        heard.append((incoming.subject, incoming.payload))

    async with await connect(nats, "placement") as ear, await connect(nats, user) as wrong:
        await ear.subscribe(subjects.RELEASES_ALL, handler)
        for of in ("grant", "sync"):
            await ear.subscribe(subjects.ack("instance", of, "*"), handler)
        await ear.alive()
        await wrong.publish(subject, b"wrong")
        await wrong.alive()
        async with await connect(nats, "node_agent") as agent:
            await agent.publish(subjects.release("n2"), b"right")
            await eventually(lambda: heard)
    assert heard == [(subjects.release("n2"), b"right")]


async def test_an_agent_may_answer_on_the_reply_subject_of_a_command(nats: EmbeddedServer) -> None:
    heard: list[str] = []

    async def answered(incoming: Incoming) -> None:
        heard.append(incoming.subject)

    async with await connect(nats, "placement") as placement, await connect(nats, "node_agent") as agent:

        async def order(incoming: Incoming) -> None:
            await agent.respond(incoming, b"{}")

        await placement.subscribe(subjects.ack("instance", "grant", "*"), answered)
        await agent.subscribe(subjects.node_command("n1", "grant"), order)
        await placement.alive()
        await agent.alive()
        reply = subjects.ack("instance", "grant", "n1")
        await placement.publish(subjects.node_command("n1", "grant"), b"{}", reply=reply)
        await eventually(lambda: heard)
    assert heard == [reply]


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        ("node_agent", subjects.CMD_BIND),
        ("node_agent", subjects.event_in_namespace("placement", "decided", "team")),
        ("node_agent", subjects.node_command("n1", "grant")),
        ("metrics", subjects.CMD_EVICT),
        ("metrics", subjects.node_command("n1", "release")),
        ("reader", subjects.node_command("n1", "grant")),
        ("reader", subjects.node_command("n1", "cordon")),
        ("reader", subjects.CMD_EVICT),
        ("operator", subjects.node_command("n1", "grant")),
        ("operator", subjects.node_command("n1", "release")),
        ("operator", subjects.CMD_BIND),
        ("reader", subjects.event_in_namespace("slice", "released", "team")),
        ("watcher", subjects.node_command("n1", "grant")),
        ("placement", subjects.event_in_namespace("slice", "released", "team")),
        ("watcher", subjects.release("n1")),
        ("preemptor", subjects.release("n1")),
        ("metrics", subjects.release("n1")),
        ("operator", subjects.release("n1")),
        ("reader", subjects.release("n1")),
    ],
)
async def test_messages_on_subjects_of_other_services_reach_no_subscriber(
    nats: EmbeddedServer, user: str, subject: str
) -> None:
    """Received by the permitted users: placement's commands by the agent and the watcher, events by the reader,
    releases by placement."""
    listener = {"cmd": "watcher", "event": "reader", "release": "placement"}[subject.split(".")[2]]
    if ".cmd.node." in subject:
        listener = "node_agent"
    heard: list[bytes] = []

    async def handler(incoming: Incoming) -> None:
        heard.append(incoming.payload)

    speaker_of_right = {
        "watcher": "placement",
        "node_agent": "placement",
        "reader": "placement",
        "placement": "node_agent",
    }[listener]
    async with (
        await connect(nats, listener) as ear,
        await connect(nats, user) as wrong,
        await connect(nats, speaker_of_right) as right,
    ):
        await ear.subscribe(subject if listener != "reader" else subjects.EVENTS_ALL, handler)
        await ear.alive()
        await wrong.publish(subject, b"wrong")
        await wrong.alive()
        allowed = subject if listener != "reader" else subjects.event_in_namespace("pod", "bound", "team")
        await right.publish(allowed, b"right")
        await eventually(lambda: heard)
    assert heard == [b"right"]


async def test_agents_and_metrics_work_with_their_own_users(nats: EmbeddedServer) -> None:
    """Inventories, commands and their answers, events, replay and queries work with these permissions and no more."""
    async with await connect(nats, "placement") as placement, await connect(nats, "reader") as reader:
        await provision(placement)
        async with (
            running(
                NodeAgent,
                Config(hollow=(HollowNode(name="n1"),)),
                bus_url=url(nats, "node_agent"),
                lifecycle=lifecycle("node_agent"),
            ),
            running(MetricsService, bus_url=url(nats, "metrics"), lifecycle=lifecycle("metrics")),
        ):
            await eventually(lambda: _inventory(placement))
            synced = await placement.request(subjects.node_command("n1", "sync"), encode(NodeSync(term=1, node="n1")))
            assert decode(synced, NodeSyncAnswer).accepted
            reply = await placement.request(
                subjects.node_command("n1", "release"), encode(NodeRelease(term=1, uid="u", grant_id="g"))
            )
            assert decode(reply, Accepted).ok
            answer = decode(await reader.request(metrics_queries.USAGE.subject, encode(UsageQuery())), UsageAnswer)
            assert answer == UsageAnswer()
            with pytest.raises(BusError):
                await asyncio.wait_for(reader.request(subjects.node_command("n1", "release"), b"{}", timeout_s=0.3), 5)


@pytest.mark.parametrize("deputy", ["the server", "placement"])
async def test_an_answer_that_is_led_into_the_log_ends_no_session_for_good(nats: EmbeddedServer, deputy: str) -> None:
    """NATS checks what a user publishes to, not which reply it names. Placement answers to inboxes alone; an answer of
    the server gets into the log, and is passed over."""
    asked = "$JS.API.STREAM.INFO.KERF_LOG" if deputy == "the server" else QUERY_STATUS.subject
    async with await connect(nats, "placement") as placement, await connect(nats, "reader") as reader:
        await provision(placement)
        first = LogClient(placement, "holder", "first")
        await first.take_term()
        kept = await first.append(ReadyRecord(term=first.term))
        answered: list[str] = []

        async def answer(incoming: Incoming) -> None:
            await placement.respond(incoming, b"{}")
            answered.append(incoming.reply)

        await placement.subscribe(QUERY_STATUS.subject, answer)
        await placement.alive()
        await reader.publish(asked, b"", reply=subjects.LOG_DECISIONS)
        if deputy == "placement":
            await eventually(lambda: answered == [subjects.LOG_DECISIONS], what="placement's answer")
            await placement.alive()
            assert await first.append(DecisionBatch(term=first.term, decisions=())) == kept + 1
        else:
            await eventually(partial(_log_ends, placement, kept + 1), what="the server's answer in the log")
        following = LogClient(placement, "holder", "second")
        await following.take_term()
        assert kept in [sequence for sequence, _ in await following.replay()]
        await following.append(ReadyRecord(term=following.term))


async def _log_ends(bus: NatsBus, at: int) -> bool:
    return await bus.log_end() == at


async def test_the_preemptor_works_with_its_own_user(nats: EmbeddedServer) -> None:
    """Feed, inventories, rejections, placement's answers and usage work with these permissions and no more."""
    plan = Plan(plan_id="p", beneficiaries=(), victims=(), deadline_s=1)
    async with await connect(nats, "placement") as placement, await connect(nats, "preemptor") as bus:
        await provision(placement)
        async with running(Preemptor, bus_url=url(nats, "preemptor"), lifecycle=lifecycle("preemptor")) as ctx:
            await eventually(lambda: ctx.health.report()["parts"]["role"]["detail"] == "works")

            async def reserve(incoming: Incoming) -> None:
                await placement.respond(incoming, encode(Reserved(plan_id="p", ok=True)))

            await placement.subscribe(subjects.CMD_RESERVE, reserve)
            await placement.alive()
            assert decode(await bus.request(subjects.CMD_RESERVE, encode(Reserve(plan=plan))), Reserved).ok
            with pytest.raises(BusError):
                await asyncio.wait_for(bus.request(subjects.CMD_BIND, b"{}", timeout_s=0.3), 5)
            left_alone = Spared(owner="o", namespace="team", since=(time.time(),), ended=(time.time(),))
            await bus.kv(subjects.KV_SPARED).put("o", encode(left_alone), ttl_s=60)
            await eventually(lambda: b"kerf_preemptor_protected_owners 1.0" in ctx.metrics.render())
            assert b"kerf_preemptor_immune_owners 1.0" in ctx.metrics.render()
    async with await connect(nats, "preemptor") as bus, await connect(nats, "node_agent") as agent:
        await _hears_what_is_used(bus, agent)


async def test_an_operator_may_cordon_and_evict(nats: EmbeddedServer) -> None:
    """It also receives usage. The agent may request evictions, too: by setting, when a GPU fails."""
    evicted: list[EvictBatch] = []
    async with (
        await connect(nats, "placement") as placement,
        await connect(nats, "operator") as operator,
        await connect(nats, "watcher") as watcher,
    ):
        await provision(placement)

        async def evict(incoming: Incoming) -> None:
            evicted.append(decode(incoming.payload, EvictBatch))
            await watcher.respond(incoming, encode(Answers()))

        await watcher.subscribe(subjects.CMD_EVICT, evict)
        await watcher.alive()
        async with running(
            NodeAgent,
            Config(hollow=(HollowNode(name="n1", count=2),)),
            bus_url=url(nats, "node_agent"),
            lifecycle=lifecycle("node_agent"),
        ):
            await eventually(lambda: _inventory(placement))
            reply = await operator.request(
                subjects.node_command("n1", "cordon"), encode(NodeCordon(node="n1", by="ada"))
            )
            answer = decode(reply, NodeCordonAnswer)
            assert (answer.ok, len(answer.gpus)) == (True, 2)
        async with await connect(nats, "node_agent") as agent:
            for bus in (operator, agent):
                await bus.request(
                    subjects.CMD_EVICT,
                    encode(EvictBatch(evictions=(Evict(uid="u", namespace="team", name="p", reason="drained"),))),
                )
            await _hears_what_is_used(operator, agent)
    assert len(evicted) == 2


async def _hears_what_is_used(bus: NatsBus, agent: NatsBus) -> None:
    heard: list[bytes] = []

    async def sample(incoming: Incoming) -> None:
        heard.append(incoming.payload)

    await bus.subscribe(subjects.USAGE_ALL, sample)
    await bus.alive()
    await agent.publish(subjects.usage("n1"), b"{}")
    await eventually(lambda: heard)


async def test_placement_works_with_its_own_user(nats: EmbeddedServer) -> None:
    """It provisions the streams, wins the leader lease in the key-value store and takes a term."""
    async with (
        running(Placement, bus_url=url(nats, "placement"), lifecycle=lifecycle("placement")) as ctx,
        await connect(nats, "placement") as bus,
    ):
        term = await eventually(lambda: bus.newest(subjects.LOG_TERM))
        assert decode(term.payload, TermRecord).holder == ctx.instance


async def _inventory(bus: NatsBus) -> bytes | None:
    return (await bus.kv(subjects.KV_NODES).get("n1")).value
