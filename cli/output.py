"""How the CLI speaks: one JSON object on stdout with --json, tables and colour for people, progress on stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from rich.console import Console
from rich.markup import escape

# A pipe has no width of its own: tables must not lose columns to a guess.
out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 240)
err = Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One object alone on stdout."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


class Failure(Exception):
    """Something a person can mend. The text says what went wrong and what to do."""


def fail(error: Failure) -> NoReturn:
    err.print(f"[red]kerf: {escape(str(error))}[/red]")
    sys.exit(1)


def read_text(file: str) -> str:
    """A file as text, `-` for standard input. Raises Failure."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Failure(f"{file} is no text: {error}") from error


def gib(mib: int) -> str:
    """MiB as GiB for people, as gpushare's inspect shows them."""
    return f"{mib / 1024:.0f}" if mib % 1024 == 0 or mib >= 10240 else f"{mib / 1024:.1f}"
