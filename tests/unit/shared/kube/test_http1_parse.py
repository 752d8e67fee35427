"""HTTP/1.1 responses, split anywhere; and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.kube.http1_parse import HEAD_LIMIT_BYTES, ProtocolError, ResponseParser

WITH_LENGTH = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\nTrailer: t\r\n\r\n"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


def whole(data: bytes, step: int = 10**9) -> tuple[ResponseParser, bytes]:
    parser, body = ResponseParser(), b""
    for start in range(0, len(data), step):
        body += b"".join(parser.feed(data[start : start + step]))
    return parser, body


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (WITH_LENGTH, 201, b"hello"),
        (CHUNKED, 200, b"hello!"),
        (EMPTY, 204, b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + WITH_LENGTH, 201, b"hello"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", 500, b""),
    ],
)
def test_a_response_is_the_same_however_it_is_sliced(data: bytes, status: int, body: bytes) -> None:
    for step in range(1, len(data) + 1):
        parser, read = whole(data, step)
        assert (parser.status, read, parser.done, parser.keep_alive) == (status, body, True, True), step


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    parser, body = whole(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert (body, parser.done, parser.keep_alive) == (b"abc", False, False)
    parser.end_of_stream()
    assert parser.done


@pytest.mark.parametrize(
    ("data", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n", True),
    ],
)
def test_a_closing_connection_is_detected(data: bytes, keeps: bool) -> None:
    assert whole(data)[0].keep_alive is keeps


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        WITH_LENGTH + b"more",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * HEAD_LIMIT_BYTES + b"\r\n",
    ],
)
def test_what_is_no_response_of_ours_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        whole(data)


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 2", WITH_LENGTH[:-1], CHUNKED[:-2]])
def test_an_end_in_the_middle_is_refused(data: bytes) -> None:
    parser, _ = whole(data)
    with pytest.raises(ProtocolError, match="ended"):
        parser.end_of_stream()


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.integers(1, 60))
def test_chunks_give_back_what_was_sent(pieces: list[bytes], step: int) -> None:
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    data += b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    parser, body = whole(data, step)
    assert (parser.done, body) == (True, b"".join(pieces))
