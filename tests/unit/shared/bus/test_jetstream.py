"""Calls of the JetStream API: reads are asked again until one is answered."""

from __future__ import annotations

import pytest

from shared.bus.jetstream import ASK_AGAIN_S
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming, Unknown

PATIENT_S = 60.0


async def test_a_read_that_met_no_leader_is_asked_again_without_waiting_for_its_time_out(bus: NatsBus) -> None:
    """What was asked during an election is never answered."""
    asked: list[bytes] = []

    async def answer(incoming: Incoming) -> None:
        asked.append(incoming.payload)
        if len(asked) == 2:
            await bus.respond(incoming, b"leader")

    await bus.subscribe("read", answer)
    assert await bus.js.ask("read", b"?", PATIENT_S, 0.05) == b"leader"
    assert asked == [b"?", b"?"]


async def test_a_slow_answer_to_the_first_of_several_requests_counts(bus: NatsBus) -> None:
    asked: list[Incoming] = []

    async def answer(incoming: Incoming) -> None:
        asked.append(incoming)
        if len(asked) == 3:
            await bus.respond(asked[0], b"slow")

    await bus.subscribe("read", answer)
    assert await bus.js.ask("read", b"?", PATIENT_S, 0.05) == b"slow"


async def test_what_may_not_be_under_way_twice_is_asked_once(bus: NatsBus) -> None:
    """A deletion that is late would delete what was made since."""
    asked: list[Incoming] = []

    async def mute(incoming: Incoming) -> None:
        asked.append(incoming)

    await bus.subscribe("write", mute)
    with pytest.raises(Unknown):
        await bus.js.ask("write", b"!", 3 * ASK_AGAIN_S, float("inf"))
    assert len(asked) == 1
