"""What really runs on the hollow nodes: each agent process writes a line when a container starts, and before it reports
that one has ended.

It is a file, so that no fault of the bus can hide a line. Times are of the monotonic clock, which all processes of a
machine share.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class Booted(msgspec.Struct, frozen=True, tag="booted"):
    """The process is new. Nothing of the one before runs."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    at: float
    node: str
    uid: str
    container: str
    grant_id: str
    gpus: dict[str, tuple[int, int]]
    """GPU uuid to (MiB, milli)."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.node, self.uid, self.container


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    node: str
    uid: str
    container: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.node, self.uid, self.container


Line = Booted | Started | Ended
_DECODER = msgspec.json.Decoder(Line)


class Writer:
    """A line is in the file when `write` returns: it is one system call, without a buffer that a SIGKILL could lose."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.write(Booted())

    def write(self, line: Line) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


class Reader:
    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> list[Line]:
        """The lines since the last call; none before the process has started."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [_DECODER.decode(line) for line in whole.splitlines()]
