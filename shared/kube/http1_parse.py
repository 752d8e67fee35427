"""HTTP/1.1 responses from bytes, by httptools (llhttp, the parser of Node.js), and stricter where a write is at stake.

What is not understood is refused: a misread response would give a wrong outcome of a write.
"""

from __future__ import annotations

from httptools import HttpParserError, HttpResponseParser

HEAD_LIMIT_BYTES = 64 * 1024


class ProtocolError(ValueError):
    """Bytes that are no valid HTTP/1.1 response. The connection cannot be used any more."""


class ResponseParser:
    """Parses the responses of one connection, one after the other; `begin` announces the next one.

    `status` is 0 until the head is read. `done` says that the response is complete; `keep_alive` whether the connection
    may be used again.
    """

    __slots__ = ("_head_bytes", "_http", "_pieces", "_until_close", "done", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self._http = HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        self._pieces: list[bytes] = []
        self._head_bytes = 0
        self._until_close = False
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.done = False
        self.keep_alive = True

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the pieces of the body in these bytes.

        Raises ProtocolError; also on bytes after the end, which belong to no request.
        """
        try:
            self._http.feed_data(data)
        except HttpParserError as error:
            raise ProtocolError(str(error.__context__ or error)) from error
        if not self.status:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT_BYTES:
                raise ProtocolError(f"the head of the response is longer than {HEAD_LIMIT_BYTES} bytes")
        pieces, self._pieces = self._pieces, []
        return pieces

    def end_of_stream(self) -> None:
        """The server closed the connection. Raises ProtocolError if the response was not complete."""
        self.done = self.done or self._until_close
        if not self.done:
            raise ProtocolError(
                "the connection ended within a response"
                if self.status or self._head_bytes
                else "the connection ended before a response"
            )
        self.keep_alive = False

    # --- called by httptools ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.done:
            raise ProtocolError("bytes after the end of the response")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # else it is a trailer
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status, headers = self._http.get_status_code(), self.headers
        if self._http.get_http_version() not in ("1.1", "1.0"):
            raise ProtocolError(f"HTTP/{self._http.get_http_version()} was not asked for")
        if status < 200:
            self.headers = {}
            if status == 101:
                raise ProtocolError("the server switched protocols, unexpectedly")
            return  # 100 and 103 announce the real one, which has a head of its own
        coding = headers.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise ProtocolError(f"transfer coding {coding[:40]!r}")
        self.status = status
        self.keep_alive = self._http.should_keep_alive()
        self._until_close = coding is None and b"content-length" not in headers and status not in (204, 304)

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self.done = self.status != 0
