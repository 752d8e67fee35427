"""Records terminal sessions as SVG pictures for the documents: `make picture`.

Each command runs for real in a pseudo-terminal of a fixed width. Its output, colours included, is what the picture
shows; lines of a kind that repeats can be cut, and `...` marks the place.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
COLUMNS = 124
READY_S = 180.0
_FONT_FILES = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
_FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_UNIQUE = "kerf"


def main() -> None:
    record(ROOT / "docs" / "demo.svg", ["make demo"], title="make demo", repeats="  waiting ")
    with simulated_cluster() as url:
        commands = ["kerf apply -f docs/examples/pods.yaml", "kerf inspect", "kerf why large", "kerf why train"]
        record(ROOT / "docs" / "session.svg", commands, title="kerf up --nodes 2 --gpus 2", KERF_NATS_URL=url)


def record(picture: Path, commands: Sequence[str], *, title: str, repeats: str = "", **variables: str) -> None:
    """Runs the commands and writes what a terminal shows. Of lines that begin with `repeats` only the first stays.

    Raises CalledProcessError where a command fails.
    """
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for number, command in enumerate(commands):
        console.print(Text.assemble("\n" if number else "", ("$ ", "bold green"), (command, "bold")))
        for line in _shortened(_output(command, variables), repeats):
            console.print(Text.from_ansi(line), highlight=False)
    svg = console.export_svg(title=title, theme=MONOKAI, unique_id=_UNIQUE, code_format=_format())
    picture.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
    sys.stderr.write(f"{picture.relative_to(ROOT)}: {picture.stat().st_size // 1024} KiB\n")


def _format() -> str:
    from rich._export_format import CONSOLE_SVG_FORMAT  # noqa: PLC0415 - rich has no public name for its default

    # A picture in a page loads no fonts from elsewhere.
    return _FONT_FILES.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code, monospace", _FONTS)


def _shortened(text: str, repeats: str) -> Iterator[str]:
    seen = 0
    for line in text.rstrip().splitlines():
        repeated = bool(repeats) and _COLOURS.sub("", line).startswith(repeats)
        seen += repeated
        if not repeated or seen == 1:
            yield line
        elif seen == 2:
            yield "  ..."


def _environment(variables: dict[str, str]) -> dict[str, str]:
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # rich: colours, but no progress bars that move the cursor.
    terminal = {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "0"}
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE")
    }  # a make in a make says where it is
    return {**outside, **terminal, "PATH": path, **variables}


def _output(command: str, variables: dict[str, str]) -> str:
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    with subprocess.Popen(
        command.split(), cwd=ROOT, env=_environment(variables), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        written = b""
        try:
            while chunk := os.read(ours, 65536):
                written += chunk
        except OSError:
            pass  # Linux: EIO when the other end is closed
        os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, written)
    return written.decode().replace("\r\n", "\n")


@contextmanager
def simulated_cluster() -> Iterator[str]:
    """`kerf up` on a free port, before its pods are applied. Yields the URL of its NATS server."""
    with subprocess.Popen(
        ["kerf", "up", "--nodes", "2", "--gpus", "2", "--port", "0"],
        cwd=ROOT,
        env=_environment({}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        seen, deadline = "", time.monotonic() + READY_S
        while not (found := re.search(r"KERF_NATS_URL=(\S+)", seen)):
            line = process.stdout.readline()
            if not line or time.monotonic() > deadline:
                raise RuntimeError(f"kerf up did not start: {seen}")
            seen += line
        try:
            yield found[1]
        finally:
            process.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
