"""Watchers that do and do not reach the API server: which of them takes orders and is followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from services.simulator.source import SimulatedSource
from services.watcher import reach, service
from services.watcher.config import Config
from services.watcher.service import Watcher
from shared.bus.embedded import EmbeddedServer
from shared.bus.feed import Feed
from shared.bus.port import Bus
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.facts import Fact, ReachQuery, SnapshotPage, SnapshotRequest
from shared.model.objects import Node
from shared.service import Context, running
from tests.support.waiting import eventually


class Source(SimulatedSource):
    """A cluster that its watcher does not reach at times."""

    cut_off = False
    every_other = False
    """It is reached at every other look."""
    looks = 0

    async def reaches(self) -> bool:
        self.looks += 1
        return self.looks % 2 == 0 if self.every_other else not self.cut_off


class Fleet:
    """Watchers on one NATS server. Each has a cluster of its own with one node, n0 or n1, by which it is known."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self._url, self._stack = url, stack
        self.sources: list[Source] = []
        self.watchers: list[Context] = []

    async def start(self) -> None:
        config = Config(source="simulated", heartbeat_s=0.05)
        ctx = await self._stack.enter_async_context(running(Watcher, config, bus_url=self._url))
        node = f"n{len(self.watchers)}"
        self.watchers.append(ctx)
        await eventually(lambda: ctx.health.ready, what="readiness")
        await self.sources[-1].apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})

    @property
    def bus(self) -> Bus:
        return self.watchers[0].bus

    def ready(self) -> list[bool]:
        return [ctx.health.ready for ctx in self.watchers]

    def serving(self) -> list[bool]:
        return ["\nkerf_watcher_serving 1" in ctx.metrics.render().decode() for ctx in self.watchers]

    async def answering(self) -> set[str]:
        """The nodes of the watchers that answer. The server draws one of them for each question."""
        answers = [await self.bus.request(subjects.QUERY_SNAPSHOT, encode(SnapshotRequest())) for _ in range(32)]
        return {node for answer in answers for node in names(decode(answer, SnapshotPage).facts)}

    async def looked(self) -> None:
        """Each watcher has looked so often that it would have left by now."""
        before = [source.looks for source in self.sources]
        most = 3 * reach.CUT_OFF_S / reach.LOOK_S
        await eventually(lambda: all(s.looks > b + most for s, b in zip(self.sources, before, strict=True)))


def names(facts: tuple[Fact, ...]) -> list[str]:
    return [fact.object.metadata.name for fact in facts if isinstance(fact.object, Node)]


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(reach, "LOOK_S", 0.05)
    monkeypatch.setattr(reach, "CUT_OFF_S", 0.2)
    monkeypatch.setattr(reach, "ANSWERS_S", 0.3)
    monkeypatch.setattr(service, "HEALTH_S", 0.05)
    async with EmbeddedServer() as server, AsyncExitStack() as stack:
        made = Fleet(server.url, stack)

        async def source(*_: Any) -> Source:
            made.sources.append(Source(reporter="test"))
            return made.sources[-1]

        monkeypatch.setattr(service, "make_source", source)
        await made.start()
        await made.start()
        yield made


async def test_a_watcher_that_is_cut_off_leaves_the_work_to_the_other_one_until_it_is_not(fleet: Fleet) -> None:
    """Before, its feed was followed for ever, and half of the orders ended there."""
    assert await fleet.answering() == {"n0", "n1"}
    followed: list[str] = []

    async def snapshot(facts: tuple[Fact, ...], _: int) -> None:
        followed.extend(names(facts))

    async def later(_: tuple[Fact, ...]) -> None:
        """Nothing changes in these clusters."""

    feed = Feed(fleet.bus, snapshot, later)
    feed.want_snapshot()
    following = asyncio.create_task(feed.run())
    await eventually(lambda: followed, what="the first snapshot")
    cut, other = (0, 1) if followed == ["n0"] else (1, 0)

    fleet.sources[cut].cut_off = True
    await eventually(lambda: not fleet.ready()[cut], what="the watcher that leaves")
    await eventually(lambda: followed == [f"n{cut}", f"n{other}"], what="the follower's change")
    assert await fleet.answering() == {f"n{other}"}
    assert fleet.serving() == [index == other for index in range(2)]
    detail = fleet.watchers[cut].health.report()["parts"]["cluster"]["detail"]
    assert detail.startswith("another watcher works instead")

    fleet.sources[cut].cut_off = False
    await eventually(lambda: all(fleet.ready()), what="its return")
    assert await fleet.answering() == {"n0", "n1"}
    assert feed.snapshots == 2, "a follower of the other one has no reason to change"
    following.cancel()


async def test_in_an_outage_of_the_api_server_all_stay(fleet: Fleet) -> None:
    """They would all leave, and nothing that is known would be served."""
    for source in fleet.sources:
        source.cut_off = True
    await fleet.looked()
    assert fleet.serving() == [True, True]
    assert await fleet.answering() == {"n0", "n1"}


async def test_one_that_has_left_says_to_none_that_it_may_leave(fleet: Fleet) -> None:
    fleet.sources[0].cut_off = True
    await eventually(lambda: fleet.serving() == [False, True], what="the watcher that leaves")
    fleet.sources[1].cut_off = True
    await fleet.looked()
    assert fleet.serving() == [False, True]


async def test_one_that_has_left_does_not_return_for_a_single_answer(fleet: Fleet) -> None:
    """Each return is a list of the cluster, and a snapshot for its readers."""
    fleet.sources[0].cut_off = True
    await eventually(lambda: fleet.serving() == [False, True], what="the watcher that leaves")
    fleet.sources[0].every_other = True
    await fleet.looked()
    assert fleet.serving() == [False, True]
    fleet.sources[0].every_other = fleet.sources[0].cut_off = False
    await eventually(lambda: fleet.serving() == [True, True], what="its return")


async def test_no_watcher_is_another_one_to_itself(fleet: Fleet) -> None:
    """It may reach the API server just when it asks."""
    epochs = [decode(await fleet.bus.request(subjects.QUERY_SNAPSHOT, b""), SnapshotPage).epoch for _ in range(32)]
    for epoch in set(epochs):
        answers = await fleet.bus.survey(subjects.QUERY_REACH, encode(ReachQuery(epoch=epoch)), within_s=0.3)
        assert len(answers) == 1
        assert epoch.encode() not in answers[0]


async def test_a_question_that_cannot_be_read_gets_no_answer(fleet: Fleet) -> None:
    assert await fleet.bus.survey(subjects.QUERY_REACH, b"{", within_s=0.3) == []
    assert await fleet.answering() == {"n0", "n1"}
