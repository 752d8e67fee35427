"""A TCP proxy in front of a server that a test can close: established connections are cut, new ones may be refused."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType


class Wire:
    """Forwards 127.0.0.1:`port` to a port of this machine. Bytes pass unread, TLS included."""

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = True
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._answering = asyncio.Event()
        self._answering.set()
        self._interjected = b""
        self._ends_after, self._resets = 0, False
        self.port = 0
        self.accepted = 0

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._flowing.set()
        self._answering.set()
        self.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut(self) -> int:
        """Ends all connections. Returns their number."""
        for writer in self._writers:
            writer.transport.abort()
        return len(self._writers)

    @property
    def passes(self) -> bool:
        """What is sent comes through, in both directions."""
        return self._open and self._flowing.is_set() and self._answering.is_set()

    def refuse(self, refused: bool = True) -> None:
        """New connections are closed immediately."""
        self._open = not refused

    def freeze(self) -> None:
        """Nothing passes and no error is reported: as in a network that loses everything."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def hold_answers(self, held: bool = True) -> None:
        """What the server says does not come through; what it is asked, and does, does. Held answers are lost by
        `cut`."""
        if held:
            self._answering.clear()
        else:
            self._answering.set()

    def interject(self, data: bytes) -> None:
        """The server seems to say this after its first words, on each new connection."""
        self._interjected = data

    def end_after(self, words: int, *, reset: bool = False) -> None:
        """New connections end, or are reset, once the server has spoken so many times; 0: they last."""
        self._ends_after, self._resets = words, reset

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if not self._open:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()  # the server is down: the client shall see just that
            return
        self._writers |= {writer, there_writer}
        for work in (
            self._pump(reader, there_writer, (self._flowing,)),
            self._pump(there_reader, writer, (self._flowing, self._answering), self._interjected, self._ends_after),
        ):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        gates: tuple[asyncio.Event, ...],
        interjected: bytes = b"",
        words: int = 0,
    ) -> None:
        with contextlib.suppress(ConnectionError):  # the cut is the purpose
            while data := await source.read(65536):
                for gate in gates:
                    await gate.wait()
                sink.write(data + interjected)
                interjected = b""
                await sink.drain()
                words -= 1
                if words == 0:
                    break
        if words == 0 and self._resets:
            sink.transport.abort()
        sink.close()
        self._writers.discard(sink)
