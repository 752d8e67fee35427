"""One fault per test, in the middle of a load: nothing is booked twice, no pod is lost, every hold ends, and the book
is rebuilt.

`World.verdict` has what each must fulfil. KERF_CHAOS_ROUNDS=20 repeats every fault with other loads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import get_args

import pytest
import pytest_asyncio

from shared.model.kube_object import ANNOTATIONS_MAX_BYTES
from tests.chaos.audit import Ask
from tests.chaos.churn.refusals import Refusal, Refusals
from tests.chaos.cluster import ChaosCluster, loaded, seeds
from tests.chaos.load import Load
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("chaos"), pytest.mark.asyncio(loop_scope="session")]

PODS = int(os.environ.get("KERF_CHAOS_PODS", "90"))
FIRST, LATER = PODS * 2 // 3, PODS // 3


@pytest_asyncio.fixture(loop_scope="session", params=seeds(1))
async def load(cluster: ChaosCluster, request: pytest.FixtureRequest) -> AsyncIterator[Load]:
    async with loaded(cluster, request.param) as made:
        yield made


class Going:
    """The first part of the load, half of it created: the time for a fault."""

    def __init__(self, load: Load) -> None:
        self._load = load

    async def __aenter__(self) -> Going:
        self._task = asyncio.create_task(self._load.go(FIRST))
        await self._load.reached(FIRST // 2)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._task.cancel()
        await self._task


async def test_nothing_happens(cluster: ChaosCluster, load: Load) -> None:
    """The verdict itself, without a fault."""
    await load.go(FIRST)
    await cluster.verdict(load)


@pytest.mark.parametrize("service", ["watcher", "node_agent", "metrics"])
async def test_a_service_is_killed(cluster: ChaosCluster, load: Load, service: str) -> None:
    async with Going(load):
        for process in cluster.site.services.values():
            if process.module == service:
                process.restart()
    await load.go(LATER)
    await cluster.verdict(load)


async def test_the_leader_is_killed(cluster: ChaosCluster, load: Load) -> None:
    term = await cluster.term()
    async with Going(load):
        (await cluster.leader()).restart()
    await cluster.another_term(term)
    await load.go(LATER)
    await cluster.verdict(load)


async def test_both_placements_are_killed(cluster: ChaosCluster, load: Load) -> None:
    async with Going(load):
        for process in cluster.site.services.values():
            if process.module == "placement":
                process.restart()
    await load.go(LATER)
    await cluster.verdict(load)


async def test_a_frozen_leader_wakes_under_its_successor(cluster: ChaosCluster, load: Load) -> None:
    term = await cluster.term()
    async with Going(load):
        sleeper = await cluster.leader()
        sleeper.freeze()
    await cluster.another_term(term)
    late = asyncio.create_task(load.go(LATER))
    sleeper.thaw()
    await late
    assert await cluster.leader() is not sleeper
    await cluster.verdict(load)


async def test_a_frozen_watcher_wakes_late(cluster: ChaosCluster, load: Load) -> None:
    """It may have taken orders that another watcher has executed in the meantime."""
    async with Going(load):
        cluster.site.services["watcher-0"].freeze()
    status = await eventually(cluster.site.status, within_s=60, every_s=0.2, what="a leader")
    decided = status.decisions

    async def went_on() -> bool:
        seen = await cluster.site.status()
        return seen is not None and seen.decisions > decided and seen.pods_holding == 0

    late = asyncio.create_task(load.go(LATER))
    await late
    await eventually(went_on, within_s=60, every_s=0.3, what="decisions that are bound by the other watcher")
    cluster.site.services["watcher-0"].thaw()
    await cluster.verdict(load)


async def test_nats_is_killed(cluster: ChaosCluster, load: Load) -> None:
    async with Going(load):
        await cluster.site.nats.kill()
    await load.go(LATER)
    await cluster.site.nats.start()
    await cluster.verdict(load)


async def test_the_whole_store_of_nats_is_deleted(cluster: ChaosCluster, load: Load) -> None:
    term = await cluster.term()
    async with Going(load):
        await cluster.site.nats.restart(wipe=True)
    await cluster.another_term(term)
    await load.go(LATER)
    await cluster.verdict(load)


async def test_the_whole_store_of_nats_is_deleted_while_a_pod_cannot_be_annotated(
    cluster: ChaosCluster, load: Load
) -> None:
    """Its annotations are as large as the API server accepts, so a new leader has to touch it in another way."""
    annotations = {"full": "x" * (ANNOTATIONS_MAX_BYTES - len("full"))}
    await load.create("full", Ask(count=64), metadata={"annotations": annotations})
    assert await load.annotate("full", "kerf.dev/touched") == 422
    term = await cluster.term()
    async with Going(load):
        await cluster.site.nats.restart(wipe=True)
    await cluster.another_term(term)
    await load.go(LATER)
    await cluster.verdict(load)


async def test_the_api_server_is_killed(cluster: ChaosCluster, load: Load) -> None:
    async with Going(load):
        cluster.site.plane.kill_api_server()
        cluster.site.plane.start_api_server()
    await load.go(LATER)
    await cluster.verdict(load)


async def test_watches_are_cut_and_fall_silent(cluster: ChaosCluster, load: Load) -> None:
    async with Going(load):
        assert cluster.site.wire.cut()
        cluster.site.wire.refuse()
        await load.reached(FIRST * 3 // 4)
        cluster.site.wire.refuse(False)
    cluster.site.wire.freeze()
    await load.go(LATER // 2)
    cluster.site.wire.thaw()
    await load.go(LATER // 2)
    await cluster.verdict(load)


async def test_the_api_server_refuses_all_that_watchers_ask(cluster: ChaosCluster, load: Load) -> None:
    refusals = Refusals(cluster.site.plane.request)
    await refusals.prepare()
    try:
        for refusal in get_args(Refusal):
            async with Going(load):
                refusals.begin(refusal)
                await refusals.carry_out()
            refusals.end(refusal)
            await refusals.carry_out()
    finally:
        refusals.end_all()
        await refusals.carry_out()
    await cluster.verdict(load)
