"""Serves the device plugin, and registers it again whenever the kubelet has restarted.

A kubelet that starts removes every socket in its plugin directory and creates its own again. That shows the restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import structlog

from services.node_agent.handover.device_plugin import OPTIONS, SlotPlugin
from services.node_agent.kubelet_api import device_plugin_pb2 as pb
from services.node_agent.kubelet_api.device_plugin_pb2_grpc import RegistrationStub, add_DevicePluginServicer_to_server
from shared.model import names
from shared.service import Context

PLUGIN_DIR = "device-plugins"
ENDPOINT = "kerf.sock"
CHECK_S = 0.5
WATCH_TIMEOUT_S = 10.0
"""If the kubelet does not watch the slots this long after a registration, the plugin registers again."""
_REGISTER_S = 5.0
_GRACE_S = 5.0

log = structlog.get_logger("device_plugin")

Identity = tuple[int, int] | None
"""Inode and creation time of a socket; None if it does not exist."""


class DevicePluginServer:
    """Serves the device plugin on its own socket, and checks the kubelet's socket twice a second."""

    def __init__(
        self,
        ctx: Context,
        kubelet_dir: Path,
        make: Callable[[Callable[[bool], None]], SlotPlugin],
        obstacle: Callable[[], str],
    ) -> None:
        """`make` creates a plugin for each new server.

        `obstacle` returns why nothing can be handed over on this node, or "".
        """
        self._ctx = ctx
        self._obstacle = obstacle
        self._dir = kubelet_dir / PLUGIN_DIR
        self._make = make
        self._server: grpc.aio.Server | None = None
        self._plugin: SlotPlugin | None = None
        self._registered_with: Identity = None
        self._registered_at = 0.0
        self._refusal = ""
        """Why the last registration failed; "" if it did not."""
        self._watchers = 0
        self._closed = False

    @property
    def watched(self) -> bool:
        """Whether the kubelet watches the slots."""
        return self._watchers > 0

    async def start(self) -> None:
        self._ctx.health.set("kubelet", ok=False, detail="not registered with the kubelet yet")
        self._ctx.on_drain(self.close)
        self._ctx.spawn(self._run_checks(), name="kubelet")

    async def close(self) -> None:
        self._closed = True
        await self._stop_serving()

    async def _run_checks(self) -> None:
        while not self._closed:
            await self._check()
            await asyncio.sleep(CHECK_S)

    async def _check(self) -> None:
        if obstacle := self._obstacle():
            # Without a plugin the kubelet soon offers no slots. Running containers are not affected.
            await self._stop_serving()
            self._ctx.health.set("kubelet", ok=False, detail=f"this node offers no slots: {obstacle}")
            return
        kubelet = _identity(self._dir / "kubelet.sock")
        if kubelet is None:
            self._registered_with = None
            self._ctx.health.set(
                "kubelet", ok=False, detail=f"the kubelet does not listen on {self._dir / 'kubelet.sock'}"
            )
            return
        if self._server is None or _identity(self._dir / ENDPOINT) is None:
            self._registered_with = None
            await self._serve()
        silent = not self.watched and self._now() - self._registered_at > WATCH_TIMEOUT_S
        if kubelet != self._registered_with or silent:
            await self._register(kubelet)

    async def _register(self, kubelet: Identity) -> None:
        request = pb.RegisterRequest(
            version="v1beta1", endpoint=ENDPOINT, resource_name=names.RESOURCE_SLOT, options=OPTIONS
        )
        self._registered_at = self._now()
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._dir / 'kubelet.sock'}") as channel:
                stub = RegistrationStub(channel)  # type: ignore[no-untyped-call]
                await stub.Register(request, timeout=_REGISTER_S)
        except grpc.aio.AioRpcError as error:
            self._registered_with = None
            self._ctx.health.set(
                "kubelet", ok=False, detail=f"the kubelet did not register the slots: {error.details()}"
            )
            if (why := str(error.details())) != self._refusal:  # it is tried again twice a second
                log.warning("not_registered", error=why)
            self._refusal = why
            return
        self._registered_with, self._refusal = kubelet, ""
        log.info("registered", resource=names.RESOURCE_SLOT)

    async def _serve(self) -> None:
        await self._stop_serving()
        path = self._dir / ENDPOINT
        path.unlink(missing_ok=True)
        server = grpc.aio.server()
        plugin = self._make(self._on_watch)
        add_DevicePluginServicer_to_server(plugin, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._server, self._plugin = server, plugin

    async def _stop_serving(self) -> None:
        if self._server is None or self._plugin is None:
            return
        self._plugin.close()
        await self._server.stop(_GRACE_S)
        self._server = self._plugin = None

    def _on_watch(self, begun: bool) -> None:
        self._watchers += 1 if begun else -1
        detail = "" if self.watched else "the kubelet does not watch the slots"
        self._ctx.health.set("kubelet", ok=self.watched, detail=detail)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _identity(path: Path) -> Identity:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns
