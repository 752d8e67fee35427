"""Questions of the command line over a real NATS server, while leaders come and go."""

from __future__ import annotations

import asyncio

import pytest

from cli.ask import ask
from cli.output import Failure
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.queries import StatusAnswer, StatusQuery


async def test_a_leader_that_begins_to_listen_a_moment_later_is_waited_for(bus: NatsBus) -> None:
    asked = asyncio.create_task(ask(bus, subjects.QUERY_STATUS, StatusQuery(), StatusAnswer))
    sure = asyncio.Event()

    async def status(incoming: Incoming) -> None:
        sure.set()
        await bus.respond(incoming, encode(StatusAnswer(holder="a")))

    with pytest.raises(TimeoutError):  # nobody listened yet, and the question has not given up
        await asyncio.wait_for(asyncio.shield(asked), 0.3)
    await bus.subscribe(subjects.QUERY_STATUS, status)
    assert (await asked).holder == "a"
    assert sure.is_set()


async def test_where_nobody_comes_the_error_says_who_is_missing(bus: NatsBus) -> None:
    with pytest.raises(Failure, match="no placement leader"):
        await ask(bus, subjects.QUERY_STATUS, StatusQuery(), StatusAnswer)
