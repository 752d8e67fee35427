"""Serves the driver of ResourceClaims, and the socket by which the kubelet finds it.

The kubelet watches the registration directory. It finds the socket there whenever it starts or the socket is made, asks
for the driver's name, and answers whether it has registered the driver. So the driver need not register again; but a
socket that is gone, as after the kubelet's directory was cleared, is made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import structlog

from services.node_agent.handover.dra import ClaimPlugin
from services.node_agent.handover.registration import CHECK_S
from services.node_agent.kubelet_api import plugin_registration_pb2 as pb
from services.node_agent.kubelet_api.dra_pb2_grpc import add_DRAPluginServicer_to_server
from services.node_agent.kubelet_api.plugin_registration_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from shared.model import names
from shared.service import Context

VERSIONS = ("v1.DRAPlugin",)
"""Kubernetes 1.34 and later."""
_GRACE_S = 5.0

log = structlog.get_logger("dra")


class ClaimDriverServer(RegistrationServicer):
    """Serves ResourceClaims: two gRPC servers, each on its own socket."""

    def __init__(
        self, ctx: Context, kubelet_dir: Path, plugin: ClaimPlugin, registered: Callable[[bool], Awaitable[None]]
    ) -> None:
        """`registered` is called with whether the kubelet has registered the driver."""
        self._ctx, self._plugin, self._registered = ctx, plugin, registered
        self._endpoint = kubelet_dir / "plugins" / names.DRA_DRIVER / "dra.sock"
        self._registration = kubelet_dir / "plugins_registry" / f"{names.DRA_DRIVER}-reg.sock"
        self._servers: dict[Path, grpc.aio.Server] = {}
        """By the socket on which each listens."""
        self._closed = False

    async def start(self) -> None:
        self._ctx.on_drain(self.close)
        await self._serve_missing()
        self._ctx.spawn(self._run_checks(), name="claims")

    async def close(self) -> None:
        servers, self._servers = self._servers, {}
        self._closed = True
        for server in servers.values():
            await server.stop(_GRACE_S)

    async def _run_checks(self) -> None:
        while not self._closed:
            await self._serve_missing()
            await asyncio.sleep(CHECK_S)

    async def _serve_missing(self) -> None:
        """Serves on each of the two sockets that does not exist, the kubelet's way in last."""
        if not (self._endpoint in self._servers and self._endpoint.exists()):
            await self._serve(self._endpoint, lambda server: add_DRAPluginServicer_to_server(self._plugin, server))  # type: ignore[no-untyped-call]
        if not (self._registration in self._servers and self._registration.exists()):
            self._ctx.health.set(
                "claims", ok=False, detail="the kubelet has not asked for the driver of ResourceClaims yet"
            )
            await self._serve(self._registration, lambda server: add_RegistrationServicer_to_server(self, server))  # type: ignore[no-untyped-call]

    async def GetInfo(self, request: pb.InfoRequest, context: Any) -> pb.PluginInfo:
        return pb.PluginInfo(
            type="DRAPlugin", name=names.DRA_DRIVER, endpoint=str(self._endpoint), supported_versions=VERSIONS
        )

    async def NotifyRegistrationStatus(
        self, request: pb.RegistrationStatus, context: Any
    ) -> pb.RegistrationStatusResponse:
        detail = (
            ""
            if request.plugin_registered
            else f"the kubelet did not register the driver of ResourceClaims: {request.error}"
        )
        self._ctx.health.set("claims", ok=request.plugin_registered, detail=detail)
        log.info(
            "driver_registered" if request.plugin_registered else "driver_not_registered",
            driver=names.DRA_DRIVER,
            error=request.error,
        )
        await self._registered(request.plugin_registered)
        return pb.RegistrationStatusResponse()

    async def _serve(self, path: Path, add: Callable[[grpc.aio.Server], object]) -> None:
        if path in self._servers:
            log.warning("socket_gone", path=str(path))
            await self._servers.pop(path).stop(_GRACE_S)
        _prepare_socket(path)
        server = grpc.aio.server()
        add(server)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers[path] = server


def _prepare_socket(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # of a process that was killed
