"""Answers larger than a message: split and joined, and over a real NATS server."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bus import parts
from shared.bus.nats_bus import NatsBus
from shared.bus.port import AnswerFailed, BusError, Incoming

BIG = bytes(range(256)) * 12_000
"""3 MB: three times what the server takes."""


@given(st.binary(min_size=1, max_size=5000), st.integers(1, 600))
def test_parts_joined_are_the_answer(payload: bytes, max_payload: int) -> None:
    joiner = parts.Joiner()
    joined = [joiner.add(body, headers) for body, headers in parts.split(payload, max_payload, "a")]
    assert joined[-1] == payload
    assert not any(joined[:-1])


def test_parts_of_two_answers_to_one_request_are_not_mixed() -> None:
    joiner = parts.Joiner()
    ones, twos = list(parts.split(b"one" * 99, 200, "1")), list(parts.split(b"two" * 99, 200, "2"))
    joined = [joiner.add(*part) for pair in zip(ones, twos, strict=True) for part in pair]
    assert [whole for whole in joined if whole] == [b"one" * 99, b"two" * 99]


@pytest.mark.parametrize("left_out", [0, 1])
def test_a_missing_part_is_named(left_out: int) -> None:
    joiner, sent = parts.Joiner(), list(parts.split(b"x" * 300, 200, "a"))
    for part in sent[:left_out]:
        joiner.add(*part)
    with pytest.raises(parts.Lost, match=f"part {left_out + 1} of 3"):
        joiner.add(*sent[left_out + 1])


async def joined(*messages: tuple[str, bytes, dict[str, str]]) -> list[bytes]:
    """What a handler of whole messages gets of these."""
    whole: list[bytes] = []

    async def take(incoming: Incoming) -> None:
        whole.append(incoming.payload)

    handler = parts.joined(take)
    for subject, payload, headers in messages:
        await handler(Incoming(subject=subject, payload=payload, headers=headers))
    return whole


def in_parts(subject: str, payload: bytes, name: str) -> list[tuple[str, bytes, dict[str, str]]]:
    return [(subject, body, headers) for body, headers in parts.split(payload, 200, name)]


async def test_a_message_that_broke_off_is_no_part_of_the_next_one() -> None:
    broken, next_one = in_parts("feed", b"x" * 300, "a"), in_parts("feed", b"y" * 300, "b")
    assert await joined(*broken[:2], *next_one, ("feed", b"small", {})) == [b"y" * 300, b"small"]


async def test_messages_on_two_subjects_are_not_mixed() -> None:
    ones, twos = in_parts("a", b"one" * 99, "1"), in_parts("b", b"two" * 99, "2")
    assert await joined(*(part for pair in zip(ones, twos, strict=True) for part in pair)) == [b"one" * 99, b"two" * 99]


async def test_a_message_of_which_a_part_is_missing_does_not_come() -> None:
    sent = in_parts("feed", b"x" * 300, "a")
    assert await joined(sent[0], sent[2], sent[1], ("feed", b"next", {})) == [b"next"]


@pytest.mark.parametrize("header", ["second", "1/" + "9" * 5000, "\u0661/\u0661"], ids=["word", "digits", "Arabic"])
def test_a_header_that_names_no_part_is_reported(header: str) -> None:
    with pytest.raises(parts.Lost, match="not such as 2/7"):
        parts.Joiner().add(b"", {parts.PART: header, parts.ANSWER: "a"})


def test_an_answer_of_any_size_that_no_server_would_hold_is_refused() -> None:
    assert "larger than Kerf sends" in parts.refusal(parts.MAX_ANSWER_BYTES + 1, 2**20, parts=True)


def test_the_error_of_an_answer_is_read_even_where_it_is_unreadable() -> None:
    body, headers = parts.error_message("too large")
    assert parts.error_of(body, headers) == "too large"
    assert "cannot be read" in parts.error_of(b"\xff", headers)
    assert parts.error_of(body, {}) == ""


async def test_a_large_answer_arrives_whole(bus: NatsBus) -> None:
    async def answer(incoming: Incoming) -> None:
        await bus.respond(incoming, BIG)

    await bus.subscribe("kerf.test.big", answer)
    assert await bus.request("kerf.test.big", b"") == BIG


async def test_the_time_out_is_counted_from_the_newest_part(bus: NatsBus) -> None:
    """The parts take longer than the time-out together; none of them does by itself."""
    sent = list(parts.split(BIG, 2**20, "a"))
    first = asyncio.Event()

    async def answer(incoming: Incoming) -> None:
        for body, headers in sent:
            await bus.publish(incoming.reply, body, headers=headers)
            first.set()
            await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=0.15)

    await bus.subscribe("kerf.test.slow", answer)
    assert await bus.request("kerf.test.slow", b"", timeout_s=0.5) == BIG


async def test_an_answer_that_breaks_off_is_an_error_that_says_where(bus: NatsBus) -> None:
    async def answer(incoming: Incoming) -> None:
        body, headers = next(iter(parts.split(BIG, 2**20, "a")))
        await bus.publish(incoming.reply, body, headers=headers)

    await bus.subscribe("kerf.test.broken", answer)
    with pytest.raises(AnswerFailed, match=r"broke off.*after part 1/6"):
        await bus.request("kerf.test.broken", b"", timeout_s=0.2)


async def test_a_client_that_knows_no_parts_reads_an_error_that_says_what_to_do(bus: NatsBus) -> None:
    async def answer(incoming: Incoming) -> None:
        await bus.respond(incoming, BIG)

    await bus.subscribe("kerf.test.big", answer)
    reply = await bus._connection.nc.request("kerf.test.big", b"", timeout=5)
    error = json.loads(reply.data)["error"]
    assert f"the answer of {len(BIG)} bytes" in error
    assert "Kerf-Accept: parts" in error


async def test_an_error_instead_of_an_answer_is_raised_at_the_asker(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MAX_ANSWER_BYTES", 2**21)

    async def answer(incoming: Incoming) -> None:
        await bus.respond(incoming, BIG)

    await bus.subscribe("kerf.test.big", answer)
    with pytest.raises(AnswerFailed, match=f"answer of {len(BIG)} bytes is larger than Kerf sends"):
        await bus.request("kerf.test.big", b"")


async def test_a_message_that_only_its_headers_make_too_large_is_refused_here(bus: NatsBus) -> None:
    """The server would hang up: it counts headers, and nats-py does not."""
    payload = b"x" * 2**20
    with pytest.raises(BusError, match="a message has at most"):
        await bus.request("kerf.test.full", payload)
    await bus.publish("kerf.test.full", payload)
    assert await bus.alive()
    assert bus.stats.reconnects == 0
