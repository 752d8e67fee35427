"""Asks the container runtime what it supports, at the start and once a minute, because it may be upgraded or
reconfigured."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
import msgspec

from services.node_agent.cdi.host import Host
from services.node_agent.handover.runtime import Runtime, Verdict, exposure, judge_cdi
from services.node_agent.kubelet_api.container_runtime_pb2 import StatusRequest, VersionRequest
from services.node_agent.kubelet_api.container_runtime_pb2_grpc import RuntimeServiceStub
from shared.formats import UNREADABLE
from shared.service import Context

REFRESH_S = 60.0
_TIMEOUT_S = 3.0
_TOOLKIT_CONFIGS = (
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)


class RuntimeMonitor:
    def __init__(self, ctx: Context, host: Host, sockets: Iterable[str], cdi_dir: str) -> None:
        self._ctx, self._host, self._sockets, self._cdi_dir = ctx, host, tuple(sockets), cdi_dir
        self._verdict = Verdict(cdi="unknown", sentence="the container runtime was not asked yet")
        self._exposed = ctx.metrics.gauge(
            "kerf_agent_gpus_exposed",
            "1 if pods that requested no GPU see all of them, because of the runtime's settings.",
        )

    @property
    def obstacle(self) -> str:
        """Why nothing can be handed over on this node; "" if it can, as far as is known."""
        return self._verdict.sentence if self._verdict.cdi == "no" else ""

    async def start(self) -> None:
        await self.refresh()
        self._ctx.spawn(self._run_refreshes(), name="runtime")

    async def refresh(self) -> None:
        """Asks the runtime. If it does not answer, the last answer stands."""
        try:
            runtime = await self._ask()
        except (grpc.aio.AioRpcError, *UNREADABLE) as error:
            self._ctx.log.warning("runtime_not_asked", error=str(error))
            return
        if runtime is None:
            self._verdict = Verdict(
                cdi="unknown", sentence=f"no container runtime listens on {', '.join(self._sockets)}"
            )
            self._ctx.health.set("runtime", ok=True, detail=self._verdict.sentence)
            return
        before, self._verdict = self.obstacle, judge_cdi(runtime, self._cdi_dir)
        if self.obstacle and self.obstacle != before:
            self._ctx.log.error("nothing_offered", why=self.obstacle)
        exposed = exposure(runtime, self._toolkit_config())
        self._exposed.set(bool(exposed))
        if exposed:
            self._ctx.log.warning("gpus_exposed", why=exposed)
        self._ctx.health.set(
            "runtime", ok=not self.obstacle, detail="; ".join(filter(None, (self._verdict.sentence, exposed)))
        )

    async def _ask(self) -> Runtime | None:
        path = next((path for socket in self._sockets if (path := self._host.seen(socket)).exists()), None)
        if path is None:
            return None
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            stub = RuntimeServiceStub(channel)  # type: ignore[no-untyped-call]
            version = await stub.Version(VersionRequest(), timeout=_TIMEOUT_S)
            status = await stub.Status(StatusRequest(verbose=True), timeout=_TIMEOUT_S)
        # Only containerd's configuration is JSON.
        config = (
            msgspec.json.decode(status.info["config"], type=dict)
            if version.runtime_name == "containerd" and "config" in status.info
            else {}
        )
        return Runtime(name=version.runtime_name, version=version.runtime_version, config=config)

    def _toolkit_config(self) -> str:
        path = next((path for name in _TOOLKIT_CONFIGS if (path := self._host.seen(name)).exists()), None)
        return "" if path is None else path.read_text()

    async def _run_refreshes(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self.refresh()
