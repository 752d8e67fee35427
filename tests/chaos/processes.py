"""Services as processes of their own: started, killed, frozen and woken, each with its log in a file."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1


class Process:
    """`python -m services.<module>`, or another `program`. It dies with the tests, however they end."""

    def __init__(self, name: str, module: str, environment: dict[str, str], logs: Path, *, program: str = "") -> None:
        self.name = name
        self.module = module
        self._program = program or f"services.{module}"
        self.log = logs / f"{name}.log"
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("KERF_")} | environment
        self._popen: subprocess.Popen[bytes] | None = None
        self.frozen = False

    def start(self) -> None:
        assert not self.alive, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", self._program],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  (the child only calls prctl)
            )

    @property
    def alive(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def pid(self) -> int:
        assert self._popen is not None
        return self._popen.pid

    def kill(self) -> None:
        """kill -9, as a crash would."""
        self._send(signal.SIGKILL)
        self._wait()

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        self._send(signal.SIGCONT)
        self.frozen = False

    def end(self) -> None:
        """In order, as in a rolling update; fails if that takes longer than its drain may."""
        self._send(signal.SIGTERM)
        self._wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def tail(self, lines: int = 15) -> str:
        text = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(
            [f"--- {self.name} (status {None if self._popen is None else self._popen.poll()})", *text[-lines:]]
        )

    def _send(self, sign: signal.Signals) -> None:
        if self.alive:
            os.kill(self.pid, sign)

    def _wait(self) -> None:
        if self._popen is not None:
            self._popen.wait(timeout=40)
        self.frozen = False


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
