"""Keeps the NRI plugin registered: again after the runtime has restarted or has dropped the plugin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from services.node_agent.handover.nri.frames import FramingError
from services.node_agent.handover.nri.plugin import CpuPlugin
from services.node_agent.handover.nri.session import Rejected, talk
from shared.service import Context

NAME, INDEX = "kerf", "99"
"""Plugins are called in the order of their indices and see what earlier ones have set. If two set the same, the
container cannot be created. So this plugin is the last, and leaves an existing cpuset unchanged."""
RETRY_S = 1.0
MIN_SESSION_S = 60.0
"""After a session shorter than this the client waits before it connects again: a plugin that the runtime has to drop
delays container starts."""

log = structlog.get_logger("nri")


class NriClient:
    """Connects to the runtime's NRI socket. Without NRI the node is just as ready: containers keep their CPUs."""

    def __init__(self, ctx: Context, socket: Path, make: Callable[[], CpuPlugin]) -> None:
        """`make` creates a plugin for each new connection."""
        self._ctx, self._socket, self._make = ctx, socket, make
        self._connected = ctx.metrics.gauge(
            "kerf_agent_nri_connected", "1 while the runtime asks for the CPUs of its containers."
        )
        self._writer: asyncio.StreamWriter | None = None
        self._reported: str | None = None
        self._closed = False

    async def start(self) -> None:
        self._ctx.on_drain(self.close)
        self._ctx.spawn(self._run_sessions(), name="nri")

    async def close(self) -> None:
        self._closed = True
        if self._writer is not None:
            self._writer.close()

    async def _run_sessions(self) -> None:
        wait_s = RETRY_S
        while not self._closed:
            begun = self._now()
            if await self._session():
                wait_s = RETRY_S if self._now() - begun > MIN_SESSION_S else min(2 * wait_s, MIN_SESSION_S)
            await asyncio.sleep(wait_s)

    async def _session(self) -> bool:
        """Runs one session. Returns whether a connection was made."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
        except OSError as error:
            self._report(
                f"the runtime serves no NRI on {self._socket}: containers keep the CPUs that they have ({error})"
            )
            return False
        self._writer, plugin = writer, self._make()
        why = "the runtime has closed the connection"
        try:
            await talk(reader, writer, NAME, INDEX, self._answering(plugin))
        except (OSError, FramingError, Rejected) as error:
            why = str(error)
        finally:
            self._writer = None
            writer.close()
            self._connected.set(0)
        if not self._closed:
            self._report(f"NRI is disconnected, so containers keep the CPUs that they have: {why}")
        return True

    def _answering(self, plugin: CpuPlugin) -> Callable[[str, bytes], bytes]:
        def answer(method: str, payload: bytes) -> bytes:
            reply = plugin.answer(method, payload)
            if method == "Synchronize" and plugin.ready:
                self._connected.set(1)
                self._report("")
            return reply

        return answer

    def _report(self, trouble: str) -> None:
        self._ctx.health.set("nri", ok=True, detail=trouble)
        if trouble != self._reported:
            log.warning("cpus_not_placed", why=trouble) if trouble else log.info("registered", socket=str(self._socket))
        self._reported = trouble

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
