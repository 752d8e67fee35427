"""Recordings: a file of JSON lines, one fact each, that only grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from shadow.objects import RECORDING_VERSION, AnyFact, Began
from shared.formats import UNREADABLE


class RecordingError(ValueError):
    """A file that is no recording. The text names the file and the line."""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(AnyFact)


def line_of(fact: AnyFact) -> bytes:
    return _ENCODER.encode(fact) + b"\n"


class Recorder:
    """Appends facts to a file that must not exist yet. Raises RecordingError where it cannot be created or written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("xb", buffering=0)
        except FileExistsError:
            raise RecordingError(f"{path} exists; a recording is never overwritten. Name another file") from None
        except OSError as error:
            raise RecordingError(f"{path} cannot be created: {error.strerror}") from error

    def write(self, fact: AnyFact) -> None:
        line = line_of(fact)
        try:
            while line:
                line = line[self._file.write(line) :]  # a disk that is almost full takes a part of it
        except OSError as error:
            raise RecordingError(f"{self._path} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """An empty file is removed, or the next try would find it in its way."""
        empty = not self._file.tell()
        self._file.close()
        if empty:
            self._path.unlink(missing_ok=True)


def read(path: Path) -> list[AnyFact]:
    """All facts in order. A last line that was cut off in the middle is left out. Raises RecordingError."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from error
    facts = list(_facts(path, lines))
    if not facts or not isinstance(facts[0], Began):
        raise RecordingError(f"{path} does not begin as a recording of kerf shadow does; make one with --record FILE")
    if facts[0].version != RECORDING_VERSION:
        raise RecordingError(
            f"{path} is a recording of version {facts[0].version}; this kerf reads version {RECORDING_VERSION}"
        )
    return facts


def _facts(path: Path, lines: list[bytes]) -> Iterator[AnyFact]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _DECODER.decode(line)
        except UNREADABLE as error:
            if number == len(lines):
                return  # the process was killed while it wrote
            raise RecordingError(f"{path}, line {number}: {error}") from None
