"""Kerf's command line as a separate process, and the processes that it leaves behind."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

_ROOT = Path(__file__).resolve().parents[2]
_MARK = "KERF_TEST_MARK"


def _heed_interrupts() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that: `nohup make test &`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Done(msgspec.Struct, frozen=True):
    code: int
    out: str
    err: str
    left: tuple[str, ...] = ()
    """Command lines of processes that descend from it and still run."""


class Command:
    """A running `python -m cli ...`, in its own process group, as in a shell."""

    def __init__(self, process: asyncio.subprocess.Process, mark: str) -> None:
        self.process, self.mark = process, mark

    @classmethod
    async def start(cls, *arguments: str, nats: str = "") -> Command:
        mark = uuid.uuid4().hex
        env = os.environ | {_MARK: mark, "COLUMNS": "200", "NO_COLOR": "1"} | ({"KERF_NATS_URL": nats} if nats else {})
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cli",
            *arguments,
            cwd=_ROOT,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )
        return cls(process, mark)

    async def done(self, *, within_s: float = 60.0) -> Done:
        try:
            out, err = await asyncio.wait_for(self.process.communicate(), within_s)
        except TimeoutError:
            self.process.kill()
            raise
        assert self.process.returncode is not None
        return Done(self.process.returncode, out.decode(), err.decode(), tuple(self.running()))

    def running(self) -> Sequence[str]:
        """Whatever carries this command's mark in its environment: children and theirs, in whatever session they
        are."""
        wanted, found = f"{_MARK}={self.mark}".encode(), []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == self.process.pid:
                continue
            try:
                environ, line = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it ended while we looked, or belongs to another user
            if wanted in environ.split(b"\0"):
                found.append(line.replace(b"\0", b" ").decode())
        return found


async def kerf(*arguments: str, nats: str = "", within_s: float = 60.0) -> Done:
    return await (await Command.start(*arguments, nats=nats)).done(within_s=within_s)


async def kerf_on_terminal(*arguments: str, nats: str = "", columns: int = 80, within_s: float = 60.0) -> list[str]:
    """The lines that a command prints on a terminal of so many columns, without colours. It must succeed."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    env |= {"TERM": "xterm", "NO_COLOR": "1"} | ({"KERF_NATS_URL": nats} if nats else {})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli", *arguments, cwd=_ROOT, env=env, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    reading = asyncio.create_task(asyncio.to_thread(_read_all, ours))
    code = await asyncio.wait_for(process.wait(), within_s)
    text = (await reading).decode()
    assert code == 0, text
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n").splitlines()


def _read_all(descriptor: int) -> bytes:
    """Until the other end is closed, which a pseudo-terminal says by an error."""
    found = b""
    try:
        while data := os.read(descriptor, 65_536):
            found += data
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    finally:
        os.close(descriptor)
    return found
