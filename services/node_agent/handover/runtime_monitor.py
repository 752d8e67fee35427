"""Asks the container runtime what it supports: every second until it answers, then once a minute, because it may be
upgraded or reconfigured."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import grpc
import msgspec

from services.node_agent.cdi.host import Host
from services.node_agent.handover.runtime import Runtime, Verdict, exposure, judge_cdi
from services.node_agent.kubelet_api.container_runtime_pb2 import StatusRequest, VersionRequest
from services.node_agent.kubelet_api.container_runtime_pb2_grpc import RuntimeServiceStub
from shared.formats import UNREADABLE
from shared.service import Context

REFRESH_S = 60.0
RETRY_S = 1.0
_TIMEOUT_S = 3.0
_TOOLKIT_CONFIGS = (
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)


class NotAnswering(Exception):
    """Sockets of container runtimes exist, and none of them answers. Its text says which, and why."""


class RuntimeMonitor:
    def __init__(
        self,
        ctx: Context,
        host: Host,
        sockets: Iterable[str],
        cdi_dir: str,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """`sockets`: where the runtime may listen on the host. The first one that answers counts. `timeout_s`: how long
        an answer may take, in seconds."""
        self._ctx, self._host, self._sockets, self._cdi_dir = ctx, host, tuple(sockets), cdi_dir
        self._sleep, self._timeout_s = sleep, timeout_s
        self._verdict: Verdict | None = None
        """What the last answer says; None before the first one."""
        self._silence = ""
        """Why there is no answer now; "" if there is one, or no runtime to be asked."""
        self._exposed = ctx.metrics.gauge(
            "kerf_agent_gpus_exposed",
            "1 if pods that requested no GPU see all of them, because of the runtime's settings.",
        )

    @property
    def obstacle(self) -> str:
        """Why nothing can be handed over on this node; "" if it can, as far as is known.

        A runtime that has not answered yet is an obstacle: it may ignore CDI devices. Where there is none to be asked,
        nothing is known, and that is no obstacle.
        """
        if self._verdict is None:
            return self._silence
        return self._verdict.sentence if self._verdict.cdi == "no" else ""

    async def start(self) -> None:
        """Asks once, and goes on to ask beside."""
        self._ctx.spawn(self._run_refreshes(answered=await self.refresh()), name="runtime")

    async def refresh(self) -> bool:
        """Asks the runtime. If it does not answer, or is gone, the last answer stands. Returns whether it answers."""
        before, silence_before = self.obstacle, self._silence
        try:
            runtime, self._silence = await self._ask(), ""
        except NotAnswering as error:
            runtime, self._silence = None, str(error)
            if self._silence != silence_before:
                self._ctx.log.warning("runtime_not_answering", why=self._silence)
        except UNREADABLE as error:  # an answer, though one that says nothing
            self._silence = ""
            self._verdict = self._verdict or Verdict(
                cdi="unknown", sentence=f"the container runtime's configuration cannot be read: {error}"
            )
            self._ctx.log.warning("runtime_configuration_not_read", error=str(error))
            self._ctx.health.set("runtime", ok=not self.obstacle, detail=self._verdict.sentence)
            return True
        if runtime is None:
            if self._verdict is None:
                unheard = f"no container runtime listens on {', '.join(self._sockets)}"
                self._ctx.health.set("runtime", ok=not self._silence, detail=self._silence or unheard)
            return False
        self._verdict = judge_cdi(runtime, self._cdi_dir)
        if self.obstacle and self.obstacle != before:
            self._ctx.log.error("nothing_offered", why=self.obstacle)
        exposed = exposure(runtime, self._toolkit_config())
        self._exposed.set(bool(exposed))
        if exposed:
            self._ctx.log.warning("gpus_exposed", why=exposed)
        self._ctx.health.set(
            "runtime", ok=not self.obstacle, detail="; ".join(filter(None, (self._verdict.sentence, exposed)))
        )
        return True

    async def _ask(self) -> Runtime | None:
        """The first runtime that answers; None if there is none. Raises NotAnswering, or DecodeError as `_ask_at`."""
        silent: list[str] = []
        for socket in self._sockets:
            if not self._host.seen(socket).exists():
                continue
            try:
                return await self._ask_at(socket)
            except grpc.aio.AioRpcError as error:
                # A containerd without its CRI plugin, as Docker's package has it, is no runtime of a kubelet.
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    silent.append(f"{socket}: {error.details()}")
        if silent:
            raise NotAnswering(
                f"the container runtime does not answer ({'; '.join(silent)}), so it is not known whether it supports "
                "CDI; start it, or set runtime_sockets to the socket that the kubelet uses"
            )
        return None

    async def _ask_at(self, socket: str) -> Runtime:
        """Raises AioRpcError, or DecodeError if containerd's configuration cannot be read."""
        async with grpc.aio.insecure_channel(f"unix:{self._host.seen(socket)}") as channel:
            stub = RuntimeServiceStub(channel)  # type: ignore[no-untyped-call]
            version = await stub.Version(VersionRequest(), timeout=self._timeout_s)
            status = await stub.Status(StatusRequest(verbose=True), timeout=self._timeout_s)
        # Only containerd's configuration is JSON.
        config = (
            msgspec.json.decode(status.info["config"], type=dict)
            if version.runtime_name == "containerd" and "config" in status.info
            else {}
        )
        return Runtime(name=version.runtime_name, version=version.runtime_version, config=config)

    def _toolkit_config(self) -> str:
        """What the configuration of NVIDIA's container runtime says; "" if there is none, or it cannot be read."""
        for name in _TOOLKIT_CONFIGS:
            try:
                return self._host.seen(name).read_text(errors="replace")
            except FileNotFoundError:
                continue
            except OSError as error:
                self._ctx.log.warning("toolkit_configuration_not_read", error=str(error))
                return ""
        return ""

    async def _run_refreshes(self, *, answered: bool) -> None:
        while True:
            await self._sleep(REFRESH_S if answered else RETRY_S)
            answered = await self.refresh()
