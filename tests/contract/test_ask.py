"""Queries of the command line over a real NATS server, while leaders start and stop."""

from __future__ import annotations

import asyncio

import pytest

from cli.ask import ask
from cli.output import Failure
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import queries
from shared.contracts.base import decode, encode
from shared.contracts.explain import Advice, AdvisedPlace, KnownEnd, Move, WhenExplanation
from shared.contracts.preemption import PreemptAnswer, PreemptQuery
from shared.contracts.queries import AdviseAnswer, AdviseQuery, StatusAnswer, StatusQuery, WhenAnswer
from tests.support.command import kerf


async def test_a_query_waits_for_a_leader_that_starts_a_moment_later(bus: NatsBus) -> None:
    asked = asyncio.create_task(ask(bus, queries.STATUS.subject, StatusQuery(), StatusAnswer))
    sure = asyncio.Event()

    async def status(incoming: Incoming) -> None:
        sure.set()
        await bus.respond(incoming, encode(StatusAnswer(holder="a")))

    with pytest.raises(TimeoutError):  # there was no responder yet, and the query has not given up
        await asyncio.wait_for(asyncio.shield(asked), 0.3)
    await bus.subscribe(queries.STATUS.subject, status)
    assert (await asked).holder == "a"
    assert sure.is_set()


async def test_without_a_leader_the_error_says_that_placement_is_missing(bus: NatsBus) -> None:
    with pytest.raises(Failure, match="no placement leader"):
        await ask(bus, queries.STATUS.subject, StatusQuery(), StatusAnswer)


async def test_advice_for_a_gang_names_the_node_of_each_pod(bus: NatsBus, nats: EmbeddedServer) -> None:
    places = tuple(AdvisedPlace(namespace="team", name=f"g{i}", node=f"n{i}") for i in range(2))
    moves = (Move(namespace="team", name="x", source="n1", target="n1", gpu_milli=500, disturbed_gpu_seconds=60),)
    advice = Advice(
        sentence="1 move would free enough capacity for 2 pods of gang g on n0, n1", moves=moves, places=places
    )

    async def answer(incoming: Incoming) -> None:
        assert decode(incoming.payload, AdviseQuery) == AdviseQuery(namespace="team", name="g0")
        await bus.respond(incoming, encode(AdviseAnswer(advice=advice)))

    await bus.subscribe(queries.ADVISE.subject, answer)
    done = await kerf("advise", "team/g0", nats=nats.url)
    assert done.code == 0, done.err
    assert "Placement afterwards: team/g0 on n0, team/g1 on n1" in done.out


async def test_without_a_preemptor_the_error_says_that_the_preemptor_is_missing(bus: NatsBus) -> None:
    with pytest.raises(Failure, match="no preemptor is connected"):
        await ask(bus, queries.PREEMPT.subject, PreemptQuery(namespace="team", name="p"), PreemptAnswer)


async def test_when_names_the_reason_why_pods_end(bus: NatsBus, nats: EmbeddedServer) -> None:
    ends = tuple(
        KnownEnd(namespace="team", name=by, node="n", in_s=60, by=by) for by in ("deletion", "deadline", "expected")
    )

    async def answer(incoming: Incoming) -> None:
        explanation = WhenExplanation(namespace="team", name="p", state="known", sentence="in 60 s", counts_on=ends)
        await bus.respond(incoming, encode(WhenAnswer(when=explanation)))

    await bus.subscribe(queries.WHEN.subject, answer)
    done = await kerf("when", "team/p", nats=nats.url)
    assert done.code == 0, done.err
    said = [line.split(" by ")[1] for line in done.out.splitlines() if " ends in 60 s by " in line]
    assert said == [
        "its deletion, with its grace period",
        "its activeDeadlineSeconds",
        "its kerf.dev/expected-duration",
    ]
