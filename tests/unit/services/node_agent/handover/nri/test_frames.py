"""NRI's frames, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.node_agent.handover.nri.frames import (
    MAX_MESSAGE_BYTES,
    PLUGIN,
    REQUEST,
    RESPONSE,
    RUNTIME,
    Decoder,
    FramingError,
    Message,
    encode,
)

messages = st.builds(
    Message,
    st.sampled_from([PLUGIN, RUNTIME]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([REQUEST, RESPONSE]),
    st.binary(max_size=9000),
)


@pytest.mark.parametrize(
    ("message", "written"),
    [
        (Message(RUNTIME, 1, REQUEST, b""), "00000002 0000000a 00000000 00000001 01 00"),
        (Message(PLUGIN, 3, RESPONSE, b"\x01\x02"), "00000001 0000000c 00000002 00000003 02 00 0102"),
    ],
)
def test_a_message_is_a_header_in_a_frame(message: Message, written: str) -> None:
    assert encode(message) == bytes.fromhex(written)
    assert Decoder().feed(bytes.fromhex(written)) == [message]


def test_a_long_message_is_split_into_frames_that_the_reader_accepts() -> None:
    """Its header is in the first frame, and each frame is at most as long as the reader's buffer."""
    written = encode(Message(PLUGIN, 1, RESPONSE, b"x" * 10_000))
    lengths = []
    while written:
        lengths.append(int.from_bytes(written[4:8]))
        written = written[8 + lengths[-1] :]
    assert lengths == [4096, 4096, 10_010 - 2 * 4096]


@given(st.lists(messages, max_size=5), st.lists(st.integers(1, 5000), min_size=1, max_size=8))
def test_messages_are_decoded_from_chunks_of_any_size(sent: list[Message], sizes: list[int]) -> None:
    written, decoder, found = b"".join(map(encode, sent)), Decoder(), list[Message]()
    turn = 0
    while written:
        size = sizes[turn % len(sizes)]
        found += decoder.feed(written[:size])
        written, turn = written[size:], turn + 1
    assert found == sent


def test_messages_of_two_connections_may_be_interleaved() -> None:
    """Frame by frame, as two writers on one socket do."""
    one, other = Message(PLUGIN, 1, REQUEST, b"a" * 5000), Message(RUNTIME, 1, RESPONSE, b"b" * 5000)
    first, second = encode(one), encode(other)
    cut = 8 + 4096
    assert Decoder().feed(first[:cut] + second[:cut] + second[cut:] + first[cut:]) == [other, one]


def test_frames_of_an_unknown_connection_are_dropped() -> None:
    message = Message(PLUGIN, 1, REQUEST, b"a")
    assert Decoder().feed(encode(Message(7, 1, REQUEST, b"b")) + encode(message)) == [message]


@pytest.mark.parametrize(
    "written",
    [
        (1).to_bytes(4) + (MAX_MESSAGE_BYTES + 11).to_bytes(4),
        (1).to_bytes(4) + (10).to_bytes(4) + (MAX_MESSAGE_BYTES + 1).to_bytes(4) + bytes(6),
    ],
)
def test_an_overlong_message_ends_the_connection(written: bytes) -> None:
    with pytest.raises(FramingError):
        Decoder().feed(written)
