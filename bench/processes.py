"""Kerf's services as processes of their own, and what they cost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from shared.bus.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parent.parent


def cpu_s(pid: int) -> float:
    """User and system time of a process so far (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return round(int(line.split()[1]) / 1024, 1)


class Fleet:
    def __init__(self, nats: EmbeddedServer, state: Path, python: str = sys.executable) -> None:
        """`python`: the interpreter of the services. It finds this one's packages, so it must be of its version."""
        self.nats, self.state, self._python = nats, state, python
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, service: str, config: Mapping[str, Any], *, name: str = "", **environment: str) -> None:
        label = name or service
        file = self.state / f"{label}.json"
        file.write_text(json.dumps(config))
        env = {**os.environ, "KERF_NATS_URL": self.nats.url, "KERF_LOG_LEVEL": "warning", **environment}
        if self._python != sys.executable:
            env["PYTHONPATH"] = sysconfig.get_path("purelib")
        with (self.state / f"{label}.log").open("ab") as log:
            self.processes[label] = subprocess.Popen(
                [self._python, "-m", f"services.{service}", "--config", str(file)],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def cpu(self) -> dict[str, float]:
        return {name: cpu_s(p.pid) for name, p in self.processes.items()} | {"nats": cpu_s(self.nats.pid)}

    def rss(self) -> dict[str, float]:
        return {name: rss_mb(p.pid) for name, p in self.processes.items()} | {"nats": rss_mb(self.nats.pid)}

    def check(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise RuntimeError(
                    f"{name} ended with {process.returncode}: {(self.state / f'{name}.log').read_text()[-2000:]}"
                )

    def logs(self) -> str:
        """The end of each process's log."""
        return "\n".join(f"--- {name}\n{(self.state / f'{name}.log').read_text()[-1500:]}" for name in self.processes)

    async def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                await asyncio.to_thread(process.wait, 20)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.asynccontextmanager
async def fleet(state: Path, python: str = sys.executable) -> AsyncIterator[Fleet]:
    async with EmbeddedServer(store_dir=state / "nats") as nats:
        made = Fleet(nats, state, python)
        try:
            yield made
        finally:
            await made.stop()
