"""What is tried: a parser with its examples, and how one case of it is made and judged."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from tests.fuzz.mutation import change_bytes, change_json, change_text

SLOW_S = 1.0
"""More CPU time for one case, all of whose examples have at most a few hundred KiB, is a hang."""


class BrokenPromise(AssertionError):
    """The parser accepted a case, and what it made of it is not what it promises."""


def promise(held: bool, text: str) -> None:
    if not held:
        raise BrokenPromise(text)


class Parser(msgspec.Struct, frozen=True, kw_only=True):
    """`read` gets the bytes of a case, and raises nothing but `errors`."""

    name: str
    form: Literal["json", "text", "bytes"]
    """How examples are changed: as a tree, as text, or as bytes."""
    examples: Sequence[Any]
    """JSON documents, texts or bytes, by `form`."""
    read: Callable[[bytes], object]
    errors: tuple[type[BaseException], ...] = ()
    weight: int = 1
    """How many cases it gets, compared with others."""

    def case(self, number: int) -> bytes:
        """Case `number`: one of the examples, changed."""
        rng = random.Random(f"{self.name}/{number}")
        example = self.examples[number % len(self.examples)]
        match self.form:
            case "json":
                return change_json(rng, example)
            case "text":
                return change_text(rng, example).encode(errors="replace")
        return change_bytes(rng, example, self.examples)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    parser: str
    number: int
    problem: str
    """The exception, or what else went wrong."""
    where: str = ""
    """The innermost line of Kerf's code."""
    case: str = ""
    """The start of its bytes."""


def run_case(parser: Parser, number: int) -> tuple[bool, Failure | None]:
    """(whether it was accepted, what is wrong). What takes too long is read twice: the time of one collection of a
    large process's garbage counts too, and a hang repeats."""
    data = parser.case(number)
    accepted, failure, took_s = _read(parser, number, data)
    if failure is None and took_s > SLOW_S:
        accepted, failure, took_s = _read(parser, number, data)
        if failure is None and took_s > SLOW_S:
            failure = _failure(parser, number, data, f"{took_s:.1f} s of CPU time")
    return accepted, failure


def _read(parser: Parser, number: int, data: bytes) -> tuple[bool, Failure | None, float]:
    """(whether it was accepted, an exception that is not among its own, seconds of CPU time)."""
    began, accepted, failure = time.process_time(), False, None
    try:
        parser.read(data)
        accepted = True
    except parser.errors:
        pass
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        failure = _failure(parser, number, data, f"{type(error).__name__}: {str(error)[:300]}", error)
    return accepted, failure, time.process_time() - began


def _failure(parser: Parser, number: int, data: bytes, problem: str, error: Exception | None = None) -> Failure:
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    ours = [frame for frame in frames if "site-packages" not in frame.filename and "/lib/python" not in frame.filename]
    where = f"{ours[-1].filename}:{ours[-1].lineno}" if ours else ""
    return Failure(parser=parser.name, number=number, problem=problem, where=where, case=repr(data[:400]))


def plain(example: Any) -> bytes:
    """The example as it is."""
    if isinstance(example, bytes):
        return example
    return example.encode() if isinstance(example, str) else msgspec.json.encode(example)
