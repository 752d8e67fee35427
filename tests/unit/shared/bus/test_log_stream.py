"""KERF_LOG on real NATS: the fence of rule R1, reading back, and how a wipe is detected."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.bus import provision as provisioning
from shared.bus.embedded import EmbeddedServer
from shared.bus.jetstream import JetStream
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, NoStream, Refused
from shared.bus.provision import provision
from shared.contracts import subjects
from shared.contracts.base import decode
from shared.contracts.log import LogMark
from tests.support.waiting import eventually

TERM, DECISIONS = subjects.LOG_TERM, subjects.LOG_DECISIONS


async def take_term(bus: NatsBus) -> int:
    newest = await bus.newest(TERM)
    return await bus.append(TERM, b"term", fence_subject=TERM, fence_sequence=newest.sequence if newest else 0)


async def test_a_stale_leader_is_refused_and_leaves_nothing_in_the_log(bus: NatsBus, connect) -> None:
    """Two rival writers: what the first one appends after the second has taken its term is not in the stream."""
    rival = await connect()
    first = await take_term(bus)
    await bus.append(DECISIONS, b"mine", fence_subject=TERM, fence_sequence=first)
    second = await take_term(rival)
    assert second > first
    with pytest.raises(Refused):
        await bus.append(DECISIONS, b"stale", fence_subject=TERM, fence_sequence=first)
    await rival.append(DECISIONS, b"theirs", fence_subject=TERM, fence_sequence=second)
    assert [entry.payload async for entry in bus.read_log()] == [b"term", b"mine", b"term", b"theirs"]


async def test_only_one_of_many_rivals_takes_the_next_term(bus: NatsBus, connect) -> None:
    buses = [bus, await connect(), await connect()]
    taken = await asyncio.gather(
        *(b.append(TERM, b"t", fence_subject=TERM, fence_sequence=0) for b in buses), return_exceptions=True
    )
    assert sum(isinstance(result, int) for result in taken) == 1
    assert sum(isinstance(result, Refused) for result in taken) == 2


async def test_reading_stops_at_the_end_that_the_log_had(bus: NatsBus) -> None:
    """A read does not wait for records that are appended while it reads."""
    term = await take_term(bus)
    read = []
    async for entry in bus.read_log():
        read.append(entry.sequence)
        if len(read) < 5:
            await bus.append(DECISIONS, b"later", fence_subject=TERM, fence_sequence=term)
    assert read == [term]


async def test_reading_from_beyond_the_end_gives_nothing(bus: NatsBus) -> None:
    end = await take_term(bus)
    assert [entry async for entry in bus.read_log(start=end + 1)] == []


async def test_large_logs_are_read_whole_and_in_order(bus: NatsBus) -> None:
    """16 MiB in 2,000 entries: flow control holds, no entry is skipped."""
    term = await take_term(bus)
    for number in range(2000):
        await bus.append(DECISIONS, b"%08d" % number + b"x" * 8000, fence_subject=TERM, fence_sequence=term)
    read = [int(entry.payload[:8]) async for entry in bus.read_log(start=term + 1)]
    assert read == list(range(2000))


async def test_an_empty_log_ends_at_0_and_has_no_newest(bus: NatsBus) -> None:
    assert await bus.log_end() == 0
    assert await bus.newest(TERM) is None
    assert [entry async for entry in bus.read_log()] == []


async def test_newest_is_by_subject(bus: NatsBus) -> None:
    term = await take_term(bus)
    last = await bus.append(DECISIONS, b"d", fence_subject=TERM, fence_sequence=term)
    newest_term, newest_decision = await bus.newest(TERM), await bus.newest(DECISIONS)
    assert newest_term is not None
    assert newest_decision is not None
    assert (newest_term.sequence, newest_decision.sequence, await bus.log_end()) == (term, last, last)


async def test_after_a_wipe_appends_fail_and_terms_continue_to_rise(server: EmbeddedServer, bus: NatsBus) -> None:
    """Rule R5: the new stream begins at the time of its creation, so no term number comes twice."""
    before = await take_term(bus)
    await server.restart(wipe=True)
    with pytest.raises(NoStream, match="provision"):
        await bus.append(DECISIONS, b"d", fence_subject=TERM, fence_sequence=before)
    with pytest.raises(NoStream):
        await bus.log_end()
    assert await provision(bus) == (
        "KERF_EVENTS",
        "KV_kerf_nodes",
        "KV_kerf_leader",
        "KV_kerf_mark",
        "KV_kerf_spared",
        "KERF_LOG",
    )
    with pytest.raises(Refused):
        await bus.append(DECISIONS, b"d", fence_subject=TERM, fence_sequence=before)
    assert await take_term(bus) > before


async def test_the_log_survives_a_kill(server: EmbeddedServer, bus: NatsBus) -> None:
    """Records for which append returned are on disk (sync_interval: always)."""
    term = await take_term(bus)
    await bus.append(DECISIONS, b"d", fence_subject=TERM, fence_sequence=term)
    await server.restart()
    assert [entry.payload async for entry in bus.read_log()] == [b"term", b"d"]


async def test_an_aged_tail_ends_the_reading(connect) -> None:
    """With a short max_age the log may be empty while its last sequence is high: reading ends, and log_end still
    returns it."""
    bus = await connect()
    await provision(bus, log_max_age_s=1)
    term = await take_term(bus)

    async def gone() -> bool:
        return (await bus.js.stream_info("KERF_LOG")).state.messages == 0

    await eventually(gone, within_s=10)
    assert [entry async for entry in bus.read_log()] == []
    assert await bus.log_end() == term


async def test_provision_is_idempotent_and_names_every_difference(bus: NatsBus) -> None:
    assert await provision(bus) == ()
    with pytest.raises(BusError) as refused:
        await provision(bus, log_max_age_s=3600)
    assert "KERF_LOG: max_age is 86400000000000, wanted 3600000000000" in str(refused.value)


async def test_several_may_provision_at_once(connect) -> None:
    buses = [await connect() for _ in range(3)]
    streams = await asyncio.gather(*(provision(bus) for bus in buses))
    # The server accepts the same configuration twice, so more than one process may believe that it was the first.
    assert {name for names in streams for name in names} == {
        "KERF_EVENTS",
        "KERF_LOG",
        "KV_kerf_leader",
        "KV_kerf_mark",
        "KV_kerf_nodes",
        "KV_kerf_spared",
    }
    assert await provision(buses[0]) == ()


async def test_the_log_can_be_neither_purged_nor_trimmed(bus: NatsBus) -> None:
    term = await take_term(bus)
    with pytest.raises(BusError):
        await bus.js.call("STREAM.PURGE.KERF_LOG", None, dict)
    with pytest.raises(BusError):
        await bus.js.call("STREAM.MSG.DELETE.KERF_LOG", {"seq": term}, dict)


async def test_a_process_that_stalls_after_creating_the_log_does_not_claim_that_nothing_was_lost(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """Between a new log and its mark a leader may have acted, and the servers may have lost all that they remembered of
    it."""
    made: list[int] = []
    create = provisioning._create

    async def stalls(js: JetStream, config: dict[str, Any], first_sequence: int = 1) -> bool:
        was_made = await create(js, config, first_sequence)
        if config["name"] == subjects.STREAM_LOG and not made:
            made.append((await js.stream_info(subjects.STREAM_LOG)).state.first_seq)
            await server.restart()  # the mark's bucket is deleted, and another process creates it again
            await provision(bus)
        return was_made

    await server.restart(wipe=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provisioning, "_create", stalls)
        await provision(bus)
    assert len(made) == 1
    assert (await bus.read_mark())[0] is None


async def test_the_beginning_of_a_new_log_is_marked(bus: NatsBus) -> None:
    value, _ = await bus.read_mark()
    assert value is not None
    first = (await bus.js.stream_info(subjects.STREAM_LOG)).state.first_seq
    assert decode(value, LogMark) == LogMark(term=0, sequence=first - 1, session="provision")
