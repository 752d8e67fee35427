"""A client of a server that writes its messages itself, as a program would that is no library of ours."""

from __future__ import annotations

import itertools
import re
import socket
import struct
from pathlib import Path

from tests.remote.remote import FRAME, Server, hello, welcome

CALLS = Path(__file__).resolve().parents[2] / "native" / "remote" / "calls.h"
_LINE = re.compile(r"CALL\((\w+), (\w*), \d+, (\w+), \w+, \d+, \"")
_ANSWER = struct.Struct("<Ii")
_processes = itertools.count(1000)


def _names() -> list[str]:
    """The calls in the order of their numbers."""
    found = []
    for plain, suffix, variants in _LINE.findall(CALLS.read_text()):
        found.append(plain + suffix)
        found += [found[-1] + {"STREAMS": "_ptsz", "COPIES": "_ptds"}[variants]] if variants != "NONE" else []
    return found


NAMES = _names()


def words(*values: int) -> bytes:
    return b"".join(struct.pack("<Q", value & (2**64 - 1)) for value in values)


def parameters(values: list[int], offsets: list[int] | None = None) -> bytes:
    """The argument `k` of a launch: parameters of 8 bytes, and where it is said that they are."""
    places = offsets if offsets is not None else [8 * i for i in range(len(values))]
    head = struct.pack(f"<I{len(places)}I", len(places), *places)
    body = head + bytes(-len(head) % 8) + words(*values)
    return words(len(body)) + body


class Raw:
    """One process with one connection, a current context, a module, the function `mix`, and a word of memory."""

    def __init__(self, server: Server) -> None:
        self._calls = welcome(hello(server.socket, calls=0, process=5))[0]
        self._server, self._process, self._tickets = server, next(_processes), 0
        self.life = hello(server.socket, calls=self._calls, process=self._process)
        assert welcome(self.life)[1]
        self.connection = self.connect()
        (self.context,) = self.values("cuDevicePrimaryCtxRetain", words(1, 0))
        assert self.ask("cuCtxSetCurrent", words(self.context))[0] == 0
        (self.module,) = self.values("cuModuleLoadData", words(1, 1) + bytes(8))
        (self.mix,) = self.values("cuModuleGetFunction", words(1, self.module, 4) + b"mix\0".ljust(8, b"\0"))
        (self.at,) = self.values("cuMemAlloc_v2", words(1, 4096))

    def connect(self) -> socket.socket:
        made = hello(self._server.socket, calls=self._calls, process=self._process, life=False)
        assert welcome(made)[1]
        return made

    def ask(self, name: str, body: bytes) -> tuple[int | None, bytes]:
        """The result and what the call wrote; the result is None where the server has ended the process."""
        try:
            self.connection.sendall(FRAME.pack(len(body), NAMES.index(name), 1, self._tickets) + body)
            head = self.connection.recv(_ANSWER.size, socket.MSG_WAITALL)
        except (ConnectionResetError, BrokenPipeError):
            return None, b""
        if len(head) < _ANSWER.size:
            return None, b""
        count, result = _ANSWER.unpack(head)
        return result, self.connection.recv(count, socket.MSG_WAITALL) if count else b""

    def values(self, name: str, body: bytes) -> tuple[int, ...]:
        result, written = self.ask(name, body)
        assert result == 0, f"{name} returned {result}"
        return struct.unpack(f"<{len(written) // 8}Q", written)

    def send(self, name: str, body: bytes) -> None:
        """A call without answer."""
        self.connection.sendall(FRAME.pack(len(body), NAMES.index(name), 0, self._tickets) + body)
        self._tickets += 1

    def launch(self, packed: bytes) -> tuple[int | None, bytes]:
        """Launches `mix` and waits."""
        self.send("cuLaunchKernel", words(self.mix, 1, 1, 1, 1, 1, 1, 0, 0) + packed + words(0))
        return self.ask("cuCtxSynchronize", b"")
