"""Keeps the plugin registered with the runtime: again when the runtime was started anew, or has given the plugin up."""

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
"""Plugins are asked in the order of their indices and see what those before them have set. Where two set the same the
container cannot be created: so this one is the last, and leaves a cpuset that is there alone."""
LOOK_S = 1.0
SHORT_S = 60.0
"""A session that was shorter is not tried again at once: a plugin that the runtime has to give up costs container starts."""

log = structlog.get_logger("nri")


class NriClient:
    """Without NRI the node is as ready as with it: containers have the CPUs that they would have had."""

    def __init__(self, ctx: Context, socket: Path, make: Callable[[], CpuPlugin]) -> None:
        """`make` gives a plugin for each new connection."""
        self._ctx, self._socket, self._make = ctx, socket, make
        self._connected = ctx.metrics.gauge(
            "kerf_agent_nri_connected", "1 while the runtime asks for the CPUs of its containers."
        )
        self._writer: asyncio.StreamWriter | None = None
        self._said: str | None = None
        self._closed = False

    async def start(self) -> None:
        self._ctx.on_drain(self.close)
        self._ctx.spawn(self._looks(), name="nri")

    async def close(self) -> None:
        self._closed = True
        if self._writer is not None:
            self._writer.close()

    async def _looks(self) -> None:
        wait_s = LOOK_S
        while not self._closed:
            begun = self._now()
            if await self._session():
                wait_s = LOOK_S if self._now() - begun > SHORT_S else min(2 * wait_s, SHORT_S)
            await asyncio.sleep(wait_s)

    async def _session(self) -> bool:
        """Whether there was one."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
        except OSError as error:
            self._say(f"the runtime serves no NRI on {self._socket}: containers keep the CPUs that they have ({error})")
            return False
        self._writer, plugin = writer, self._make()
        why = "the runtime has ended the connection"
        try:
            await talk(reader, writer, NAME, INDEX, self._answering(plugin))
        except (OSError, FramingError, Rejected) as error:
            why = str(error)
        finally:
            self._writer = None
            writer.close()
            self._connected.set(0)
        if not self._closed:
            self._say(f"NRI is lost, and containers keep the CPUs that they have: {why}")
        return True

    def _answering(self, plugin: CpuPlugin) -> Callable[[str, bytes], bytes]:
        def answer(method: str, payload: bytes) -> bytes:
            reply = plugin.answer(method, payload)
            if method == "Synchronize" and plugin.ready:
                self._connected.set(1)
                self._say("")
            return reply

        return answer

    def _say(self, trouble: str) -> None:
        self._ctx.health.set("nri", ok=True, detail=trouble)
        if trouble != self._said:
            log.warning("cpus_not_placed", why=trouble) if trouble else log.info("registered", socket=str(self._socket))
        self._said = trouble

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
