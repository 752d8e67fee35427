"""One HTTP/1.1 connection as an asyncio protocol: exchanges one after the other, or one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

from shared.kube.http1_parse import ProtocolError, ResponseParser
from shared.kube.transport import MAX_RETRY_AFTER_S, Response, TransportError

STREAM_BUFFER_BYTES = 4 << 20
_BODY_LIMIT_BYTES = 512 << 20


class Connection(asyncio.Protocol):
    """One socket. Either `exchange`, one after the other, or one stream for the rest of its life."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = ResponseParser()
        self._body: list[bytes] = []
        self._size = 0
        self._done: asyncio.Future[Response] | None = None
        self._streaming = False
        self._arrived = asyncio.Event()
        self._error: TransportError | None = None
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.idle_since = 0.0
        self.certificate = 0
        """How often the client certificate had been renewed when this was opened."""
        self.silent = True
        """Whether no byte of the answer to the last request has arrived."""

    @property
    def reusable(self) -> bool:
        return (
            self._error is None
            and self._done is None
            and not self._streaming
            and self._transport is not None
            and not self._transport.is_closing()
        )

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        self.silent = False
        if self._done is None and not self._streaming:
            self._fail("the server spoke unasked")
            return
        parser = self._parser
        try:
            pieces = parser.feed(data)
        except ProtocolError as error:
            self._fail(f"the server's answer cannot be read: {error}")
            return
        if pieces:
            self._body += pieces
            self._size += sum(map(len, pieces))
        if self._streaming:
            self._heard_at = asyncio.get_running_loop().time()
            self._pace()
            self._arrived.set()
        elif parser.done:
            self._finish()
        elif self._size > _BODY_LIMIT_BYTES:
            self._fail(f"the answer is larger than {_BODY_LIMIT_BYTES} bytes")

    def eof_received(self) -> None:
        try:
            self._parser.end_of_stream()
        except ProtocolError as error:
            self._fail(str(error))
            return
        if self._streaming:
            self._arrived.set()
        elif self._done is not None:
            self._finish()
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection was lost: {error}" if error else "the connection was closed")

    # --- one request --------------------------------------------------------------------------------------------------

    async def exchange(self, message: bytes, timeout_s: float) -> Response:
        assert self._transport is not None  # noqa: S101
        loop = asyncio.get_running_loop()
        self._parser.begin()
        self._body, self._size, self.silent = [], 0, True
        self._done = loop.create_future()
        timer = loop.call_later(timeout_s, self._fail, f"no answer in {timeout_s:g} s")
        self._transport.write(message)
        try:
            return await self._done
        except asyncio.CancelledError:
            self._fail("the request was given up")
            raise
        finally:
            timer.cancel()
            self._done = None

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            parser = self._parser
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._done.set_result(Response(parser.status, body, _seconds(parser.headers.get(b"retry-after"))))
        if not self._parser.keep_alive:
            self.abort()

    def _fail(self, text: str) -> None:
        if self._error is None:
            self._error = TransportError(text)
        if self._done is not None and not self._done.done():
            self._done.set_exception(self._error)
        self._arrived.set()
        self.abort()

    def abort(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

    # --- a stream -----------------------------------------------------------------------------------------------------

    def begin_stream(self, message: bytes, read_timeout_s: float) -> None:
        assert self._transport is not None  # noqa: S101
        self._streaming = True
        self._heard_at = asyncio.get_running_loop().time()
        self._listen(read_timeout_s)
        self._transport.write(message)

    async def head(self) -> Response:
        while not self._parser.status:
            await self._more()
        return Response(self._parser.status, b"", _seconds(self._parser.headers.get(b"retry-after")))

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            if self._body:
                data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
                self._body, self._size = [], 0
                self._pace()
                yield data
            elif self._parser.done:
                return
            else:
                await self._more()

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._arrived.clear()
        await self._arrived.wait()

    def _listen(self, read_timeout_s: float) -> None:
        """One timer for the whole stream, reset only when it fires: a time-out around each wait costs more than its
        data.

        While the reader makes the server wait, silence is not the server's fault.
        """
        if self._transport is None or self._transport.is_closing():
            return
        loop = asyncio.get_running_loop()
        if not self._transport.is_reading():
            self._heard_at = loop.time()
        left_s = self._heard_at + read_timeout_s - loop.time()
        if left_s <= 0:
            self._fail(f"not a byte in {read_timeout_s:g} s")
            return
        self._timer = loop.call_later(left_s, self._listen, read_timeout_s)

    def _pace(self) -> None:
        """A slow reader makes the server wait instead of filling memory."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._size > STREAM_BUFFER_BYTES:
            self._transport.pause_reading()
        elif not self._transport.is_reading():
            self._transport.resume_reading()


def _seconds(value: bytes | None) -> float:
    """Retry-After in seconds; its other form, a date, is read as none."""
    return min(MAX_RETRY_AFTER_S, float(value)) if value is not None and value.isdigit() else 0.0
