"""The log client on real NATS: which session may append, and how a log that has lost records is detected (R1, R5)."""

from __future__ import annotations

import pytest

from services.placement.leader.log_client import LogClient
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, NoStream, Refused
from shared.bus.provision import provision
from shared.contracts import subjects
from shared.contracts.base import decode
from shared.contracts.log import Decision, DecisionBatch, LogMark, ReadyRecord, TermRecord

_COUNT = iter(range(10**6))


def client(bus: NatsBus, holder: str = "one") -> LogClient:
    return LogClient(bus, holder, f"{holder}/{next(_COUNT)}")


def batch(term: int, name: str = "p") -> DecisionBatch:
    return DecisionBatch(
        term=term, decisions=(Decision(uid=name, namespace="ns", name=name, resource_version="1", node="n"),)
    )


async def mark(bus: NatsBus) -> int:
    value, _ = await bus.read_mark()
    return 0 if value is None else decode(value, LogMark).sequence


async def restore(bus: NatsBus, *, keep: int) -> None:
    """The log as a backup has it: its first `keep` records, under their sequences."""
    entries = [entry async for entry in bus.read_log()][:keep]
    config = (await bus.js.stream_info(subjects.STREAM_LOG)).config
    await bus.js.call(f"STREAM.DELETE.{subjects.STREAM_LOG}", None, dict)
    await bus.js.call(f"STREAM.CREATE.{subjects.STREAM_LOG}", config | {"first_seq": entries[0].sequence}, dict)
    for entry in entries:
        assert (
            await bus.js.store(subjects.STREAM_LOG, entry.subject, entry.payload, {}, timeout_s=5.0) == entry.sequence
        )


async def test_a_session_takes_a_term_appends_and_marks_each_record(bus: NatsBus) -> None:
    log = client(bus)
    term = await log.take_term()
    assert (log.term, log.found_mark and log.found_mark.sequence, await mark(bus)) == (term, term - 1, term - 1), (
        "the log begins with this term"
    )
    ready = await log.append(ReadyRecord(term=term))
    assert (ready, await mark(bus)) == (term + 1, ready)
    assert await log.append(batch(term)) == ready + 1
    assert await mark(bus) == ready + 1


async def test_a_successor_replays_terms_and_records_and_finds_the_mark(bus: NatsBus, connect) -> None:
    first, second = client(bus), client(await connect(), "two")
    term = await first.take_term()
    await first.append(ReadyRecord(term=term))
    last = await first.append(batch(term))
    await second.take_term()
    records = await second.replay()
    assert [(sequence, type(record)) for sequence, record in records] == [
        (term, TermRecord),
        (term + 1, ReadyRecord),
        (last, DecisionBatch),
    ]
    assert second.found_mark is not None
    assert second.found_mark.sequence == last


async def test_a_superseded_leader_cannot_renew(bus: NatsBus, connect) -> None:
    """It would skip the replay, and lead with a book that lacks what its successor decided."""
    first, second = client(bus), client(await connect(), "two")
    await first.append(ReadyRecord(term=await first.take_term()))
    term = await second.take_term()
    with pytest.raises(Refused):
        await first.renew_term()
    await second.append(batch(term))
    with pytest.raises(Refused):
        await first.append(batch(first.term))


async def test_a_leader_renews_its_own_term(bus: NatsBus) -> None:
    log = client(bus)
    first = await log.take_term()
    await log.append(ReadyRecord(term=first))
    second = await log.renew_term()
    assert second > first
    assert await mark(bus) == second
    await log.append(batch(second))


async def test_of_two_sessions_that_try_for_the_same_term_one_is_refused(bus: NatsBus, connect) -> None:
    """Both have read the same newest term."""
    first, second = client(bus), client(await connect(), "two")
    steps = second._protocol.take_term()
    steps.send(None)
    term = await first.take_term()
    request = steps.send(None)  # as if the log had been empty when it was read
    with pytest.raises(Refused):
        await second._answer(request)
    await first.append(ReadyRecord(term=term))


async def test_after_a_restart_of_nats_the_session_ends_and_the_next_finds_no_mark(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    log = client(bus)
    term = await log.take_term()
    await log.append(ReadyRecord(term=term))
    await server.restart()
    with pytest.raises(NoStream):
        await log.append(batch(term))
    await provision(bus)
    again = client(bus)
    await again.take_term()
    assert again.found_mark is None


async def test_a_leader_is_refused_at_its_next_append_if_its_records_were_lost(bus: NatsBus) -> None:
    """The restored log has its term as the newest; its records since then are lost, and a new one would take their
    numbers."""
    log = client(bus)
    term = await log.take_term()
    await log.append(ReadyRecord(term=term))
    await log.append(batch(term, "a"))
    await restore(bus, keep=2)
    with pytest.raises(Refused):
        await log.append(batch(term, "b"))


async def test_a_successor_on_a_restored_log_sees_that_the_marked_record_is_missing(bus: NatsBus, connect) -> None:
    first = client(bus)
    term = await first.take_term()
    await first.append(ReadyRecord(term=term))
    lost = await first.append(batch(term, "a"))
    await restore(bus, keep=2)
    second = client(await connect(), "two")
    assert await second.take_term() == lost, "the number comes a second time"
    assert second.found_mark is not None
    assert second.found_mark.sequence == lost


async def test_a_leader_is_refused_if_another_has_moved_its_mark(bus: NatsBus, connect) -> None:
    """Both took a term of the same number, one of them on a log that had lost the other's."""
    first, second = client(bus), client(await connect(), "two")
    term = await first.take_term()
    await first.append(ReadyRecord(term=term))
    await restore(bus, keep=1)
    assert await second.take_term() == term + 1
    with pytest.raises(Refused):
        await first.append(batch(term))
    await second.append(ReadyRecord(term=term + 1))
    first._protocol.term = term + 1  # the same number, as if it had been taken before the loss
    first._protocol._last = term + 2
    with pytest.raises(Refused):
        await first.append(batch(term + 1))


async def test_a_recreated_log_has_higher_numbers_and_refuses_leaders_of_the_old_one(bus: NatsBus, connect) -> None:
    first, second = client(bus), client(await connect(), "two")
    old = await first.take_term()
    await first.append(ReadyRecord(term=old))
    term = await second.take_term()
    beyond = term + 10**9
    await second.begin_anew(beyond)
    assert await bus.newest(subjects.LOG_TERM) is None
    with pytest.raises(BusError):
        await first.append(batch(old))
    with pytest.raises(BusError):
        await second.append(ReadyRecord(term=term))
    third = client(bus, "three")
    assert await third.take_term() >= beyond
    assert third.found_mark is not None
    assert third.found_mark.sequence == beyond - 1
    assert await third.replay() == ()
    assert await provision(bus) == ()


async def test_a_log_is_not_deleted_under_a_later_leader(bus: NatsBus, connect) -> None:
    first, second = client(bus), client(await connect(), "two")
    await first.take_term()
    term = await second.take_term()
    with pytest.raises(Refused, match=f"term {term} was taken meanwhile"):
        await first.begin_anew(1)
    await second.append(ReadyRecord(term=term))


async def test_a_log_that_was_deleted_and_is_provisioned_keeps_its_mark(bus: NatsBus) -> None:
    """It is the evidence that records were acted on which the new log does not have."""
    log = client(bus)
    last = await log.append(ReadyRecord(term=await log.take_term()))
    await bus.js.call(f"STREAM.DELETE.{subjects.STREAM_LOG}", None, dict)
    assert await provision(bus) == (subjects.STREAM_LOG,)
    assert await mark(bus) == last


async def test_a_mark_that_was_on_its_way_when_the_servers_lost_it_does_not_fit_the_next_bucket(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """A reconnected client sends what was queued before; the session of those messages is over."""
    _, revision = await bus.read_mark()
    await server.restart()
    await provision(bus)
    with pytest.raises(Refused):
        await bus.write_mark(b"late", revision)
    value, later = await bus.read_mark()
    assert value is None
    assert later > revision


async def test_a_failed_request_is_reported_with_its_kind(bus: NatsBus, connect) -> None:
    failed: list[tuple[str, str]] = []
    first = LogClient(bus, "one", "one/failing", lambda *what: failed.append(what))
    await first.take_term()
    assert failed == []
    await client(await connect(), "two").take_term()
    with pytest.raises(Refused):
        await first.append(ReadyRecord(term=first.term))
    assert set(failed) == {("AppendRecord", "Refused")}
