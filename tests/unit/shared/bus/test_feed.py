"""The watcher's feed as placement follows it: what is applied, what is a gap, and which snapshot is requested."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
import structlog

from services.watcher import feed as sending
from services.watcher.core import Core
from services.watcher.snapshots import Snapshots
from shared.bus import feed as feed_module
from shared.bus import parts, snapshot_reader
from shared.bus.embedded import EmbeddedServer
from shared.bus.feed import Feed, Follower, Gap
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.facts import Fact, FeedBatch, Put, ReachAnswer, ReachQuery, SnapshotPage, SnapshotRequest
from shared.model.affinity import Toleration
from tests.support import build
from tests.support.waiting import eventually


def batch(number: int, name: str = "", epoch: str = "e") -> FeedBatch:
    return FeedBatch(epoch=epoch, number=number, facts=build.put(build.node(name)) if name else ())


def names(facts: tuple[Fact, ...] | list[Fact]) -> list[str]:
    return [fact.object.metadata.name for fact in facts]


def followed() -> Follower:
    follower = Follower()
    follower.snapshot("e", 7)
    return follower


def test_batches_after_the_snapshot_are_applied_in_order() -> None:
    follower = followed()
    assert names(follower.batch(batch(7, "before"))) == [], "the snapshot has it"
    assert names(follower.batch(batch(8, "a"))) == ["a"]
    assert names(follower.batch(batch(9, "b"))) == ["b"]


def test_a_missing_batch_is_a_gap() -> None:
    """Its contents are in no later batch: a pod that it showed bound would be placed a second time."""
    follower = followed()
    with pytest.raises(Gap, match="batch 9 of epoch e came after 7"):
        follower.batch(batch(9, "b"))


def test_another_watchers_batches_are_not_applied() -> None:
    """Its numbers are its own: one of them would count as a batch of the watcher that is followed."""
    follower = followed()
    assert names(follower.batch(batch(8, "foreign", epoch="other"))) == []
    assert names(follower.batch(batch(8, "own"))) == ["own"]


def test_batches_that_come_while_a_snapshot_is_taken_follow_it() -> None:
    follower = followed()
    follower.forget()
    for number, name in ((8, "before"), (9, "a"), (10, "b")):
        assert follower.batch(batch(number, name)) == ()
    assert names(follower.snapshot("e", 8)) == ["a", "b"]


def test_a_missing_batch_among_those_received_during_the_snapshot_is_a_gap_too() -> None:
    follower = followed()
    follower.forget()
    follower.batch(batch(10, "b"))
    with pytest.raises(Gap):
        follower.snapshot("e", 8)


class Watcher:
    """Answers with an empty snapshot of two pages, and keeps the requests that it got."""

    def __init__(self, bus: NatsBus, epoch: str = "e") -> None:
        self._bus, self._epoch = bus, epoch
        self.asked: list[SnapshotRequest] = []
        self.mute = False

    async def start(self) -> None:
        await self._bus.subscribe(subjects.QUERY_SNAPSHOT, self._answer, queue="watcher")
        await self._bus.subscribe(subjects.snapshot_of(self._epoch), self._answer)
        await self._bus.alive()

    async def _answer(self, incoming: Incoming) -> None:
        request = decode(incoming.payload, SnapshotRequest)
        self.asked.append(request)
        if self.mute:
            return
        facts = build.put(build.node(f"n{request.page}"))
        page = SnapshotPage(epoch=self._epoch, snapshot="s", number=7, page=request.page, pages=2, facts=facts)
        await self._bus.respond(incoming, encode(page))


async def test_a_reader_requests_a_fresh_snapshot_and_gets_it_completely(bus: NatsBus) -> None:
    """A watcher that has fallen behind the API server would otherwise give a new leader outdated state (R5)."""
    watcher = Watcher(bus)
    await watcher.start()
    seen: list[tuple[Fact, ...]] = []

    async def snapshot(facts: tuple[Fact, ...], _: int) -> None:
        seen.append(facts)

    async def later(_: tuple[Fact, ...]) -> None:
        """No batch comes."""

    feed = Feed(bus, snapshot, later)
    feed.want_snapshot()
    running = asyncio.create_task(feed.run())
    try:
        await eventually(lambda: seen)
    finally:
        running.cancel()
    asked = [(request.fresh, request.snapshot, request.page) for request in watcher.asked]
    assert asked == [(False, "none", 0), (True, "", 0), (False, "s", 1)]
    assert names(seen[0]) == ["n0", "n1"]


async def test_the_log_position_counts_that_any_watcher_has_seen_not_only_the_one_that_answers(
    bus: NatsBus,
) -> None:
    """A log that has lost records is noticed by the watcher that carried out its last orders (R5)."""
    watcher = Watcher(bus)
    await watcher.start()
    seen: list[int] = []

    async def snapshot(_: tuple[Fact, ...], sequence: int) -> None:
        seen.append(sequence)

    async def later(_: tuple[Fact, ...]) -> None:
        """No batch is of the watcher that is followed."""

    feed = Feed(bus, snapshot, later)
    running = asyncio.create_task(feed.run())
    try:
        await bus.alive()
        other = FeedBatch(epoch="other", number=1, facts=(), log_sequence_seen=77)
        await eventually(lambda: heard(bus, feed, other), what="the other watcher's batch")
        feed.want_snapshot()
        await eventually(lambda: seen)
    finally:
        running.cancel()
    assert seen == [77]


class Follows:
    """A feed that follows watcher "e", counts its snapshots and keeps the names of the facts after them."""

    def __init__(self, bus: NatsBus) -> None:
        self.feed = Feed(bus, self._snapshot, self._facts)
        self.names: list[str] = []

    async def __aenter__(self) -> Feed:
        self._running = asyncio.create_task(self.feed.run())
        self.feed.want_snapshot()
        await eventually(lambda: self.feed.snapshots == 1)
        return self.feed

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()

    async def _snapshot(self, facts: tuple[Fact, ...], _: int) -> None: ...

    async def _facts(self, facts: tuple[Fact, ...]) -> None:
        self.names += names(facts)


async def test_a_watcher_whose_process_has_ended_is_replaced_long_before_its_silence_counts(
    server: EmbeddedServer, bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "SILENCE_S", 3600.0)
    own = await NatsBus.connect(server.url)
    await Watcher(own).start()
    async with Follows(bus) as feed:
        await own.close()  # as the kernel does to the sockets of a process that was killed
        await Watcher(bus, "other").start()
        await eventually(lambda: feed.snapshots == 2, what="a snapshot of the other watcher")


async def test_a_watcher_that_is_there_is_not_replaced_because_it_has_nothing_to_say(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it answers the probes or not."""
    monkeypatch.setattr(feed_module, "SILENCE_S", 3600.0)
    watcher = Watcher(bus)
    await watcher.start()
    async with Follows(bus) as feed:
        await eventually(lambda: len(watcher.asked) >= 2 + 2 * feed_module.PROBES, what="probes")
        watcher.mute = True
        await eventually(lambda: len(watcher.asked) >= 2 + 4 * feed_module.PROBES, what="unanswered probes")
        assert feed.snapshots == 1


async def test_a_watcher_that_hangs_costs_no_more_than_an_answer(bus: NatsBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """NATS gives questions to it, too, for as long as its connection seems to stand. With each of them a new leader
    waited for 20 s before it could decide."""
    monkeypatch.setattr(snapshot_reader, "ANSWER_S", 0.1)
    monkeypatch.setattr(snapshot_reader, "PAGE_TIMEOUT_S", 3600.0)
    works, hangs = Watcher(bus, "works"), Watcher(bus, "hangs")
    hangs.mute = True
    for watcher in (works, hangs):
        await watcher.start()
    for _ in range(8):
        async with Follows(bus) as feed:
            assert feed.snapshots == 1
    assert hangs.asked
    assert not any(request.fresh for request in hangs.asked)


async def test_a_snapshot_is_asked_of_a_watcher_that_reaches_the_api_server(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is cut off from it answers at once that it is there, and keeps a fresh snapshot waiting for 15 s."""
    monkeypatch.setattr(snapshot_reader, "PAGE_TIMEOUT_S", 3600.0)
    reaches, cut_off = Watcher(bus, "reaches"), Watcher(bus, "cut-off")
    for watcher in (reaches, cut_off):
        await watcher.start()

    async def asked(incoming: Incoming) -> None:
        assert not decode(incoming.payload, ReachQuery).epoch
        await bus.respond(incoming, encode(ReachAnswer(epoch="reaches")))

    await bus.subscribe(subjects.QUERY_REACH, asked)
    for _ in range(8):
        async with Follows(bus) as feed:
            assert feed.snapshots == 1
    assert sum(request.fresh for request in reaches.asked) == 8
    assert not cut_off.asked


async def test_a_page_is_awaited_for_as_long_as_its_watcher_works(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, one that ended, or was cut off, while it listed for a new leader cost that leader 20 s."""
    monkeypatch.setattr(snapshot_reader, "PAGE_TIMEOUT_S", 3600.0)
    monkeypatch.setattr(snapshot_reader, "LOOK_S", 0.02)
    monkeypatch.setattr(snapshot_reader, "WORKS_S", 2.0)
    first, other = Watcher(bus, "first"), Watcher(bus, "other")
    for watcher in (first, other):
        await watcher.start()
    first.mute = True
    working, looks = ["first"], 0

    async def asked(incoming: Incoming) -> None:
        nonlocal looks
        looks += 1
        for epoch in working:
            await bus.respond(incoming, encode(ReachAnswer(epoch=epoch)))

    await bus.subscribe(subjects.QUERY_REACH, asked)
    follows = Follows(bus)
    following = asyncio.create_task(follows.__aenter__())
    await eventually(lambda: first.asked, what="the request for a page")
    working[:] = ["other", "first"]
    seen = looks
    await eventually(lambda: looks > seen + 5, what="looks")
    assert not other.asked
    working[:] = ["other"]
    await eventually(following.done, what="the other one's snapshot")
    await follows.__aexit__(None, None, None)
    assert sum(request.fresh for request in other.asked) == 1


async def test_probes_ask_for_no_snapshot(bus: NatsBus) -> None:
    """A watcher would list the whole cluster for one."""
    watcher = Watcher(bus)
    await watcher.start()
    async with Follows(bus):
        await eventually(lambda: len(watcher.asked) >= 4, what="probes")
    page = Snapshots("e", ttl_s=60).page(watcher.asked[-1].snapshot, 0, 0.0, log_sequence_seen=0)
    assert (watcher.asked[-1].fresh, page.pages) == (False, 0)
    assert page.error


def large(name: str) -> tuple[Put, ...]:
    """A pod that is larger than a message: any user may make one, and of any scheduler."""
    tolerations = tuple(Toleration(key=f"example.com/t{i:05d}", operator="Exists") for i in range(30_000))
    made = build.pod(name)
    return build.put(msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, tolerations=tolerations)))


async def test_objects_larger_than_a_message_are_followed_like_any_other(bus: NatsBus) -> None:
    core = Core("e")
    core.number = 7  # where the watcher's snapshot is
    sender = sending.Feed(bus, core, structlog.get_logger())
    await Watcher(bus).start()
    follows = Follows(bus)
    async with follows as feed:
        for facts in (large("a"), large("b"), build.put(build.node("small"))):
            sender.send(core.facts(facts, time.monotonic()))
        running = asyncio.create_task(sender.run())
        await eventually(lambda: len(follows.names) == 3, what="the last object")
        running.cancel()
    assert follows.names == ["a", "b", "small"]
    assert (feed.snapshots, feed.gaps, sender.lost) == (1, 0, 0)


async def test_a_batch_of_which_a_part_is_missing_is_a_gap(bus: NatsBus) -> None:
    await Watcher(bus).start()
    follows = Follows(bus)
    async with follows as feed:
        sent = list(parts.split(encode(FeedBatch(epoch="e", number=8, facts=large("a"))), 2**20, "a"))
        for body, headers in sent[:1] + sent[2:]:
            await bus.publish(subjects.feed("e"), body, headers=headers)
        await bus.publish(subjects.feed("e"), encode(batch(9)))
        await eventually(lambda: feed.snapshots == 2, what="another snapshot")
    assert (follows.names, feed.gaps) == ([], 1)


async def heard(bus: NatsBus, feed: Feed, batch: FeedBatch) -> bool:
    await bus.publish(subjects.feed(batch.epoch), encode(batch))
    return feed._sequence_seen == batch.log_sequence_seen
