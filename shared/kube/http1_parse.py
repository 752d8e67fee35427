"""HTTP/1.1 responses from bytes: pure, incremental, strict. RFC 9112, as far as an API server uses it.

It refuses what it does not understand: a misread response would give a wrong outcome of a write.
"""

from __future__ import annotations

HEAD_LIMIT_BYTES = 64 * 1024
_SIZE_LINE_LIMIT_BYTES = 256


class ProtocolError(ValueError):
    """Bytes that are no valid HTTP/1.1 response. The connection cannot be used any more."""


class ResponseParser:
    """Takes bytes as they arrive and returns pieces of the body. One instance parses one response.

    `status` is 0 until the head is read. `done` says that the response is complete; `keep_alive` whether the connection
    may be used again.
    """

    __slots__ = ("_buffer", "_chunked", "_left", "_state", "done", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self._buffer = b""
        self._state = "head"
        self._left = 0
        self._chunked = False
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.done = False
        self.keep_alive = True

    def feed(self, data: bytes) -> list[bytes]:
        """Raises ProtocolError; also on bytes after the end, which belong to no request."""
        pieces: list[bytes] = []
        buffer = self._buffer + data if self._buffer else data
        while buffer:
            if self.done:
                raise ProtocolError(f"{len(buffer)} bytes after the end of the response")
            state = self._state
            if state == "body":
                piece, buffer = buffer[: self._left], buffer[self._left :]
                self._left -= len(piece)
                pieces.append(piece)
                if not self._left:
                    self._body_ended()
            elif state == "until-close":
                pieces.append(buffer)
                buffer = b""
            else:
                end, width, limit = _line_end(buffer, state)
                if end < 0:
                    if len(buffer) > limit:
                        raise ProtocolError(f"the {state} of the response is longer than {limit} bytes")
                    break
                line, buffer = buffer[:end], buffer[end + width :]
                self._line(state, line)
        self._buffer = buffer
        return pieces

    def end_of_stream(self) -> None:
        """The server closed the connection. Raises ProtocolError if the response was not complete."""
        if self._state == "until-close" and self.status:
            self.done = True
        if not self.done:
            raise ProtocolError(
                "the connection ended within a response"
                if self.status or self._buffer
                else "the connection ended before a response"
            )
        self.keep_alive = False

    def _line(self, state: str, line: bytes) -> None:
        if state == "head":
            self._head(line)
        elif state == "size":
            text = line.split(b";", 1)[0].strip()
            if not text or len(text) > 15 or text.strip(b"0123456789abcdefABCDEF"):
                raise ProtocolError(f"{line[:40]!r} is no chunk size")
            self._left = int(text, 16)
            self._state = "body" if self._left else "trailer"
        elif state == "gap":
            if line:
                raise ProtocolError(f"{line[:40]!r} where a chunk should end")
            self._state = "size"
        elif not line:  # the empty line after the trailers
            self.done = True

    def _body_ended(self) -> None:
        if self._chunked:
            self._state = "gap"
        else:
            self.done = True

    def _head(self, block: bytes) -> None:
        first, *lines = block.split(b"\r\n")
        parts = first.split(b" ", 2)
        if len(parts) < 2 or parts[0] not in (b"HTTP/1.1", b"HTTP/1.0") or len(parts[1]) != 3 or not parts[1].isdigit():
            raise ProtocolError(f"{first[:60]!r} is no status line")
        headers: dict[bytes, bytes] = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            name, value = name.lower(), value.strip(b" \t")
            if not colon or not name or name[:1] in b" \t" or name[-1:] in b" \t":
                raise ProtocolError(f"{line[:60]!r} is no header")
            if name == b"content-length" and headers.get(name, value) != value:
                raise ProtocolError("two different lengths")
            headers[name] = value
        status = int(parts[1])
        if status < 200:
            if status == 101:
                raise ProtocolError("the server switched protocols, unexpectedly")
            return  # 100 and 103 announce the real one, which has a head of its own
        self.status, self.headers = status, headers
        connection = headers.get(b"connection", b"").lower()
        self.keep_alive = b"close" not in connection if parts[0] == b"HTTP/1.1" else b"keep-alive" in connection
        self._frame(status, headers)

    def _frame(self, status: int, headers: dict[bytes, bytes]) -> None:
        """How long the body is (RFC 9112, section 6.3)."""
        coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
        if status in (204, 304):
            self.done = True
        elif coding is not None:
            if coding.lower() != b"chunked" or length is not None:
                raise ProtocolError(
                    f"transfer coding {coding[:40]!r}" + (" with a length beside it" if length is not None else "")
                )
            self._chunked, self._state = True, "size"
        elif length is not None:
            if not length.isdigit() or len(length) > 15:
                raise ProtocolError(f"{length[:40]!r} is no length")
            self._left = int(length)
            self._state = "body"
            self.done = not self._left
        else:
            self.keep_alive = False
            self._state = "until-close"


def _line_end(buffer: bytes, state: str) -> tuple[int, int, int]:
    """Where the next unit of this state ends, how wide its end is, and how long it may be."""
    if state == "head":
        return buffer.find(b"\r\n\r\n"), 4, HEAD_LIMIT_BYTES
    return buffer.find(b"\r\n"), 2, _SIZE_LINE_LIMIT_BYTES
