"""How the CLI speaks: one JSON object on stdout with --json, tables and colour for people, progress on stderr."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import sys
import textwrap
from collections.abc import Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from shared.contracts.base import ContractError
from shared.formats import decode_manifests
from shared.printable import printable, printable_json
from shared.redaction import redact

PAGE_COLUMNS = 100
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Without control characters in texts. Styles are rendered later."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def on_broken_pipe(self) -> None:
        """Rich would end the process here, in whatever task it is; `run_command` ends it in order."""
        raise  # noqa: PLE0704 - it is called where the BrokenPipeError is handled


# A pipe has no width of its own: neither columns nor words may be lost to a guess.
# Names and addresses hold what rich takes for emoji codes, such as ":a:".
out = _Console(highlight=False, emoji=False, soft_wrap=True, width=None if sys.stdout.isatty() else 10_000)
err = _Console(stderr=True, highlight=False, emoji=False)


def use_any_encoding() -> None:
    """What the terminal's encoding has no sign for is printed as a question mark, and ends no command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def print_json(value: Any) -> None:
    """One object alone on stdout, in UTF-8 as JSON is, whatever the terminal's encoding."""
    text = printable_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n"
    if not isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.write(text)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def new_table(*columns: str, right: Collection[str] = (), title: str | None = None) -> Table:
    """A table without lines. In a narrow terminal a cell goes on in the next line: no name is cut off. `right`: the
    columns of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def say(text: str, *, indent: str = "", hanging: str = "") -> None:
    """One paragraph, broken between words where the terminal ends. `hanging`: the indent of its further lines, by
    default that of the first. A newline at its beginning is an empty line before it."""
    if text.startswith("\n"):
        out.print()
    body = text.removeprefix("\n")
    blanks = body[: len(body) - len(body.lstrip(" "))]
    lines = textwrap.wrap(
        body,
        width=out.width,
        initial_indent=indent,
        subsequent_indent=hanging or indent + blanks,
        break_long_words=False,
        break_on_hyphens=False,
    )
    out.print("\n".join(lines), markup=False)


def heading(text: str) -> None:
    """A line with a text at its left; of the terminal's width, and in a pipe no longer than a page."""
    out.print(Rule(Text(text), align="left"), width=min(out.width, PAGE_COLUMNS))


def fits(table: Table) -> bool:
    """Whether the terminal is wide enough for the table as it is."""
    return out.measure(table, options=out.options.update(width=100_000)).maximum <= out.width


class Failure(Exception):
    """A failure that the user can mend. The text says what went wrong and what to do."""


def fail(error: Failure) -> NoReturn:
    err.print(f"[red]kerf: {escape(redact(str(error)))}[/red]", soft_wrap=not err.is_terminal)
    sys.exit(1)


def run_command(command: Coroutine[Any, Any, None]) -> None:
    """Runs a command to its end. Ends the process with 1 on a Failure, where an answer cannot be read and where there
    is no room for what is written, with 141 where nothing reads its output any more, and with 130 when it is
    interrupted."""
    try:
        asyncio.run(command)
        if sys.stdout is not None:  # closed by the shell: >&-
            sys.stdout.flush()
    except Failure as error:
        fail(error)
    except ContractError as error:
        fail(
            Failure(
                f"an answer cannot be read: {error}. Is the service of another version? Use the kerf of its version"
            )
        )
    except BrokenPipeError:  # whatever read this has ended, such as `head`
        _write_no_more()
        sys.exit(141)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _write_no_more()
        fail(Failure(f"{error.strerror}: not all was written. Make room there, or write it elsewhere"))
    except KeyboardInterrupt:
        sys.exit(130)


def _write_no_more() -> None:
    """Python flushes stdout once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def read_text(file: str) -> str:
    """A file as text, `-` for standard input. Raises Failure."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Failure(f"{file} is no text: {error}") from error


def read_pod(file: str) -> Any:
    """The metadata and spec of a Pod manifest. Raises Failure."""
    text = read_text(file)
    try:
        documents = decode_manifests(text)
    except msgspec.DecodeError as error:
        raise Failure(f"{file} is neither YAML nor JSON: {error}") from error
    document = documents[0] if len(documents) == 1 else None
    if not isinstance(document, dict) or document.get("kind", "Pod") != "Pod":
        raise Failure(f"{file} is no Pod manifest; this takes one pod")
    return {key: document[key] for key in ("metadata", "spec") if key in document}


def pod_name(given: str, namespace: str) -> tuple[str, str]:
    """(namespace, name) of a pod given as NAME or NAMESPACE/NAME."""
    named, _, name = given.rpartition("/")
    return named or namespace, name


def gib(mib: int) -> str:
    """MiB as GiB for people, as gpushare's inspect shows them."""
    return f"{mib / 1024:.0f}" if mib % 1024 == 0 or mib >= 10240 else f"{mib / 1024:.1f}"
