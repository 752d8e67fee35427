"""One leader session on real NATS, with a watcher of an empty cluster: when it ends, and how it uses its log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
import structlog

from services.placement import messages as m
from services.placement import service
from services.placement.leader.log_client import LogClient
from services.placement.leader.session import LeaderSession, LogDeleted
from services.placement.service import Config, Placement
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming, Refused
from shared.bus.provision import provision
from shared.contracts import subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.commands import AnnounceEvent, Answer, Answers, PatchBatch, ReportPending, TouchPod
from shared.contracts.facts import SnapshotPage, SnapshotRequest
from shared.contracts.log import Decision, DecisionBatch, ReadyRecord, TermRecord
from shared.contracts.node_commands import Accepted, Beat, NodeSync, NodeSyncAnswer
from shared.contracts.samples import UsageSample
from shared.service import Context, running
from shared.service.base import Health
from shared.telemetry import Metrics, Telemetry
from tests.support import build
from tests.support.waiting import eventually

LIMIT_S = 10.0
"""A session that should end and does not fails its test."""


Meanwhile = Callable[[], Awaitable[object]]


async def nothing() -> None:
    """What happens before the watcher answers, unless a test sets something else."""


async def watch_nothing(bus: NatsBus, meanwhile: Meanwhile = nothing) -> None:
    """Answers for the watcher that there is nothing in the cluster."""

    async def answer(incoming: Incoming) -> None:
        if decode(incoming.payload, SnapshotRequest).fresh:
            await meanwhile()
        await bus.respond(incoming, encode(SnapshotPage(epoch="e", snapshot="s", number=0, page=0, pages=1)))

    await bus.subscribe(subjects.QUERY_SNAPSHOT, answer)
    await bus.subscribe(subjects.snapshot_of("e"), answer)


async def new_session(
    bus: NatsBus, *, meanwhile: Meanwhile = nothing, renew_term_s: float = 3600.0, renew_term_decisions: int = 100
) -> LeaderSession:
    """A session that has taken its term. `meanwhile` happens when it requests its first snapshot."""
    await watch_nothing(bus, meanwhile)
    ctx = Context(
        service="placement", instance="one", log=structlog.get_logger(),
        config=Config(renew_term_s=renew_term_s, renew_term_decisions=renew_term_decisions),
        telemetry=Telemetry("placement", ratio=0.0, otlp_endpoint=""), metrics=Metrics(), health=Health(), bus=bus,
    )  # fmt: skip
    log = LogClient(bus, "one", "one/1")
    await log.take_term()
    return LeaderSession(ctx, log)


async def end_of(session: LeaderSession) -> None:
    try:
        await asyncio.wait_for(session.run(), LIMIT_S)
    finally:
        await session.close()


async def readies(bus: NatsBus, reason: str) -> list[int]:
    """Terms taken for this reason whose own ready is in the log."""
    entries = [entry async for entry in bus.read_log()]
    terms = {e.sequence: decode(e.payload, TermRecord) for e in entries if e.subject == subjects.LOG_TERM}
    ready = {decode(e.payload, ReadyRecord).term for e in entries if e.subject == subjects.LOG_READY}
    return [term for term, record in terms.items() if record.reason == reason and term in ready]


async def test_a_session_ends_when_its_append_is_refused(bus: NatsBus, connect) -> None:
    """Another session has taken a term: this one would continue without knowing the other's decisions."""
    rival = LogClient(await connect(), "two", "two/1")
    session = await new_session(bus, meanwhile=rival.take_term)
    with pytest.raises(Refused, match="last sequence"):
        await end_of(session)


async def test_a_session_hears_the_samples_of_nodes_and_refuses_those_of_others(bus: NatsBus) -> None:
    session = await new_session(bus)
    running = asyncio.create_task(session.run())
    heard: list[m.Input] = []
    session.core.handle = lambda event, _now: heard.append(event) or []  # type: ignore[func-returns-value, method-assign]
    await eventually(lambda: heard)
    mine, other = UsageSample(node="n", at_ms=1), UsageSample(node="other", at_ms=1)
    await bus.publish(subjects.usage("n"), encode(other))
    await bus.publish(subjects.usage("n"), encode(mine))
    await eventually(lambda: any(isinstance(event, m.Sampled) for event in heard))
    assert [event.sample for event in heard if isinstance(event, m.Sampled)] == [mine]
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await session.close()


async def test_a_leader_renews_its_term_when_it_is_due(bus: NatsBus) -> None:
    """Otherwise the first records of its log would expire. Its holds and its ready are written to the log again."""
    session = await new_session(bus, renew_term_s=0.0)
    first = session.log_client.term
    task = asyncio.create_task(session.run())
    try:
        await eventually(lambda: readies(bus, "renewed"), within_s=LIMIT_S)
        assert session.core.term > first
    finally:
        task.cancel()
        await session.close()


async def test_a_leader_renews_its_term_after_so_many_decisions(bus: NatsBus) -> None:
    """Its successor reads the log from the newest term on, so the decisions of a term bound how long that takes."""
    session = await new_session(bus, renew_term_decisions=3)
    first = session.log_client.term
    task = asyncio.create_task(session.run())
    try:
        await eventually(lambda: session.core.may_renew, within_s=LIMIT_S)  # it leads, and no append is under way
        two = DecisionBatch(term=first, decisions=(_decision("a"), _decision("b")))
        await session._append(m.Append(two))
        await eventually(lambda: session.waiting == 0, within_s=LIMIT_S)
        assert session.core.term == first
        await session._append(m.Append(two))
        await eventually(lambda: readies(bus, "renewed"), within_s=LIMIT_S)
        assert session.core.term > first
    finally:
        task.cancel()
        await session.close()


def _decision(uid: str) -> Decision:
    return Decision(uid=uid, namespace="team", name=uid, resource_version="1", node="n")


async def test_a_new_session_books_its_first_snapshot_part_by_part(bus: NatsBus) -> None:
    """One input for a whole large cluster would hold the loop for longer than the leader lease lasts."""
    session = await new_session(bus)
    facts = build.put(*(build.node(f"n{i}") for i in range(450)))
    session.core.handle(m.TermTaken(session.log_client.term, mark=session.log_client.found_mark), 0.0)
    await session._snapshot(facts, 0)
    sizes = [len(event.facts) for event in queued(session) if isinstance(event, m.SnapshotPart)]
    assert (sum(sizes), max(sizes)) == (450, 50)
    session.core.handle(m.SnapshotSeen(facts, 0), 0.0)
    await session._snapshot(facts, 0)
    assert [type(event) for event in queued(session)] == [m.SnapshotSeen], "a leader takes a later one as a whole"
    await session.close()


def queued(session: LeaderSession) -> list[m.Input]:
    return [session._inbox.get_nowait() for _ in range(session.waiting)]


async def test_a_session_ends_by_a_reported_newer_term_only_if_the_log_has_one(bus: NatsBus, connect) -> None:
    """A node's message alone must not end the session of the true leader."""
    session = await new_session(bus)
    await session._check_term("node n: its agent follows another term")
    await LogClient(await connect(), "two", "two/1").take_term()
    with pytest.raises(Refused, match="is not this session's"):
        await session._check_term("node n: its agent follows another term")
    await session.close()


async def test_a_log_that_does_not_answer_ends_no_session(server: EmbeddedServer, bus: NatsBus) -> None:
    session = await new_session(bus)
    await server.restart(wipe=True)
    await session._check_term("node n: its agent follows another term")
    assert not session._failure.done()
    await session.close()


async def test_a_session_ends_although_a_snapshot_was_wanted_at_that_moment(bus: NatsBus) -> None:
    """A cancellation that comes together with what is waited for can be lost; the session would never have ended."""
    session = await new_session(bus)
    running = asyncio.create_task(session.run())
    await eventually(lambda: session.core.phase == "leading", within_s=LIMIT_S)
    session.feed.want_snapshot()
    running.cancel()
    await asyncio.wait_for(session.close(), LIMIT_S)
    assert all(task.done() for task in session._tasks)
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_orders_that_the_bus_does_not_take_end_no_session(server: EmbeddedServer, bus: NatsBus) -> None:
    """Without a connection the client keeps a few of them. Each is repeated until its node answers."""
    session = await new_session(bus)
    arrived: list[bytes] = []

    async def heard(incoming: Incoming) -> None:
        arrived.append(incoming.payload)

    await bus.subscribe(subjects.node_command("n", "sync"), heard)
    order = m.SendSync(NodeSync(term=1, node="n"))
    await server.kill()
    await eventually(lambda: not bus._connection.nc.is_connected, within_s=LIMIT_S)
    bus._connection.nc._max_pending_size = 1
    await session._carry_out([order, order])
    assert session._orders_unsent == 2
    await server.start()
    await eventually(lambda: bus._connection.nc.is_connected, within_s=LIMIT_S)
    await session._carry_out([order])
    await eventually(lambda: arrived == [encode(order.sync)], within_s=LIMIT_S)
    assert session._orders_unsent == 0
    await session.close()


async def test_orders_for_many_pods_go_in_parts_that_fit_into_messages(bus: NatsBus) -> None:
    """All pending pods of a large cluster are touched after a loss of the log; NATS would not accept one message with
    all of them."""
    sizes: list[tuple[int, int]] = []

    async def watch(incoming: Incoming) -> None:
        patches = decode(incoming.payload, PatchBatch).patches
        sizes.append((len(patches), len(incoming.payload)))
        refused = tuple(Answer(uid=patch.uid, outcome="refused", message="x" * 300) for patch in patches)
        await bus.respond(incoming, encode(Answers(answers=refused)))

    await bus.subscribe(subjects.CMD_PATCH, watch)
    session = await new_session(bus)
    pods = tuple(
        TouchPod(uid=f"{i:036}", namespace="n" * 63, name=f"{i:0253}", token=f"{2**45}-{2**40}") for i in range(8_000)
    )
    await session._send_patches(m.SendPatches(pods))
    assert sum(count for count, _ in sizes) == len(pods)
    assert max(size for _, size in sizes) < 1_000_000
    heard = [session._inbox.get_nowait() for _ in range(session.waiting)]
    assert sum(len(event.answers) for event in heard) == len(pods)
    await session.close()


async def test_reports_of_many_bytes_go_in_parts_too(bus: NatsBus) -> None:
    arrived: list[str] = []

    async def watch(incoming: Incoming) -> None:
        patches = decode(incoming.payload, PatchBatch).patches
        arrived.extend(patch.uid for patch in patches)
        await bus.respond(incoming, encode(Answers(answers=())))

    await bus.subscribe(subjects.CMD_PATCH, watch)
    session = await new_session(bus)
    long = [ReportPending(uid=f"{i}", namespace="n", name="p", reason="R", message="x" * 32_000) for i in range(100)]
    too_long = ReportPending(uid="too-long", namespace="n", name="p", reason="R", message="x" * 2_000_000)
    await session._send_patches(m.SendPatches((*long[:50], too_long, *long[50:])))
    assert arrived == [patch.uid for patch in long]
    await session.close()


async def test_only_answers_to_touches_are_taken_for_touches(bus: NatsBus) -> None:
    """A refused Event must not exclude its pod."""

    async def watch(incoming: Incoming) -> None:
        refused = tuple(
            Answer(uid=patch.uid, outcome="refused") for patch in decode(incoming.payload, PatchBatch).patches
        )
        await bus.respond(incoming, encode(Answers(answers=refused)))

    await bus.subscribe(subjects.CMD_PATCH, watch)
    session = await new_session(bus)
    event = AnnounceEvent(uid="u-event", namespace="n", name="p", reason="R", action="A", note="n")
    await session._send_patches(m.SendPatches((event, TouchPod(uid="u-touch", namespace="n", name="q", token="1-1"))))
    (heard,) = [session._inbox.get_nowait() for _ in range(session.waiting)]
    assert [answer.uid for answer in heard.answers] == ["u-touch"]
    await session.close()


async def test_touches_that_no_watcher_receives_are_reported_as_not_sent(bus: NatsBus) -> None:
    session = await new_session(bus)
    event = AnnounceEvent(uid="u-event", namespace="n", name="p", reason="R", action="A", note="n")
    await session._send_patches(m.SendPatches((event, TouchPod(uid="u-touch", namespace="n", name="q", token="1-1"))))
    assert [session._inbox.get_nowait() for _ in range(session.waiting)] == [m.TouchesNotSent(("u-touch",))]
    await session.close()


async def test_a_session_on_a_log_that_has_lost_records_deletes_it(server: EmbeddedServer, bus: NatsBus) -> None:
    """And it ends: the next one starts on an empty log."""
    before = LogClient(bus, "zero", "zero/1")
    last = await before.append(ReadyRecord(term=await before.take_term()))
    await server.restart()  # all servers together: none remembers which record was the last
    await provision(bus)
    session = await new_session(bus)
    with pytest.raises(LogDeleted, match="do not remember"):
        await end_of(session)
    assert await bus.newest(subjects.LOG_TERM) is None
    again = LogClient(bus, "one", "one/2")
    assert await again.take_term() > last
    assert again.found_mark is not None


async def test_each_session_of_a_process_has_a_name_of_its_own(
    server: EmbeddedServer, bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Otherwise an unanswered request of one of them could be taken for that of another."""
    monkeypatch.setattr(service, "exercise", lambda: None)  # nothing is placed here, so nothing need be compiled
    await watch_nothing(bus)

    async def elected() -> list[TermRecord]:
        entries = [entry async for entry in bus.read_log()]
        terms = [decode(e.payload, TermRecord) for e in entries if e.subject == subjects.LOG_TERM]
        return [term for term in terms if term.reason == "elected" and term.holder != "two"]

    async with running(Placement, Config(renew_term_s=0.1), bus_url=server.url) as ctx:
        await eventually(lambda: readies(bus, "elected"), within_s=LIMIT_S)
        rival = LogClient(bus, "two", "two/1")
        for _ in range(20):  # the leader may have renewed between the check of its term and the rival's append
            with contextlib.suppress(Refused):
                await rival.take_term()
                break
        await eventually(lambda: more_than_one(elected), within_s=LIMIT_S)
        terms = await elected()
        assert {term.holder for term in terms} == {ctx.instance}
    assert len({term.session for term in terms}) == len(terms)


async def more_than_one(found: Callable[[], Awaitable[list[TermRecord]]]) -> bool:
    return len(await found()) > 1


async def test_an_agent_reports_only_on_its_own_node(bus: NatsBus) -> None:
    """Its messages about another node's grants, syncs or heartbeat would free what the other node still uses."""
    session = await new_session(bus)
    grants, syncs = subjects.ack("one", "grant", "evil"), subjects.ack("one", "sync", "evil")
    dead = Accepted(node="good", grant_id="g", ok=False, dead=True)
    own = Accepted(node="good", grant_id="g", ok=True)
    synced = NodeSyncAnswer(node="good", boot_id="b", term=1, accepted=True)
    with pytest.raises(ContractError):
        await session._grant_answered(Incoming(subject=grants, payload=encode(dead)))
    with pytest.raises(ContractError):
        await session._sync_answered(Incoming(subject=syncs, payload=encode(synced)))
    with pytest.raises(ContractError):
        await session._heartbeat(Incoming(subject=subjects.heartbeat("evil"), payload=encode(Beat(nodes=("good",)))))
    assert session.waiting == 0
    await session._grant_answered(Incoming(subject=subjects.ack("one", "grant", "good"), payload=encode(own)))
    assert session.waiting == 1
    await session.close()
