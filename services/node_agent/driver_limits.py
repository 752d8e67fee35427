"""Has the driver hold the memory of pods: a limit for the pod's cgroup on each GPU, the sum of its containers' slices.

It is set before a container starts, and again when a slice is shrunk or gets its memory back, when the agent starts,
and when the canary has proven that such limits hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from services.node_agent.core import Agent
from services.node_agent.devices.memory_limits import MemoryLimitError
from services.node_agent.devices.monitor import DeviceMonitor
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.strategies.slice_registry import SliceRegistry
from shared.contracts.node_commands import LiveSlice
from shared.model.strategies import registered
from shared.model.strategy import Strategy
from shared.model.units import MIB
from shared.service import Context


class DriverLimits:
    def __init__(
        self,
        ctx: Context,
        agent: Agent,
        *,
        registry: SliceRegistry,
        devices: DeviceMonitor,
        cgroups: PodCgroups,
        holds: Callable[[], bool],
    ) -> None:
        """`holds`: whether the canary has seen that such limits hold, for all memory but managed memory."""
        self._ctx, self._agent, self._registry, self._devices = ctx, agent, registry, devices
        self._cgroups, self._holds = cgroups, holds
        self._serial = asyncio.Lock()
        self._set: dict[str, dict[str, int]] = {}
        """By the pod's UID: the bytes of its limit on each GPU."""
        ctx.metrics.observe_by(
            "kerf_agent_pod_driver_limit_bytes",
            "GPU memory at which the driver refuses a pod's allocations.",
            self._limits,
            labels=("gpu", "namespace", "pod"),
        )

    async def apply(self, uid: str) -> None:
        """Sets the limits of a pod as its slices are now. Raises MemoryLimitError: then no container may start."""
        async with self._serial:
            wanted = self._wanted(one for one in self._agent.live() if one.uid == uid)
            if not wanted:
                return
            folder = self._folder(uid)
            if folder is None:
                raise MemoryLimitError(
                    f"pod {uid} has no cgroup of version 2, by which the driver could limit its GPU memory; the "
                    "kubelet must create a cgroup for each pod, and cgroup_dir must be where the host's are mounted"
                )
            for uuid, limit_bytes in wanted.items():
                await self._devices.limit_memory(uuid, folder, limit_bytes)
            self._set[uid] = wanted

    async def refresh(self) -> None:
        """Sets the limits of running pods that are not as they should be. Logs those that fail."""
        slices: dict[str, list[LiveSlice]] = {}
        for live in self._agent.live():
            slices.setdefault(live.uid, []).append(live)
        for uid, of_pod in sorted(slices.items()):
            wanted = self._wanted(of_pod)
            if not wanted or wanted == self._set.get(uid):
                continue
            try:
                await self.apply(uid)
            except MemoryLimitError as error:
                self._ctx.log.error(
                    "driver_limit_not_set", pod=uid, error=str(error), effect="the driver keeps its last limit"
                )

    def keep_only(self, uids: Collection[str]) -> None:
        """Forgets all other pods: a pod is released when its cgroup is gone, and the limits are gone with it."""
        self._set = {uid: limits for uid, limits in self._set.items() if uid in uids}

    def _wanted(self, slices: Iterable[LiveSlice]) -> dict[str, int]:
        """A pod's limits by GPU, of its slices. A GPU on which no slice needs one has none."""
        live = list(slices)
        gpus = {uuid for one in live if self._is_limited(registered()[one.strategy]) for uuid in one.gpus}
        return {uuid: sum(self._registry.allowed_mib(one, uuid) for one in live) * MIB for uuid in sorted(gpus)}

    def _is_limited(self, strategy: Strategy) -> bool:
        """A strategy that promises as much needs the limit; for others it is better than none."""
        return strategy.driver_limit and (strategy.promise == "hard" or self._holds())

    def _folder(self, uid: str) -> Path | None:
        folders = (folder for pod, folder in self._cgroups.folders() if pod == uid)
        return next((folder for folder in folders if (folder / "cgroup.controllers").exists()), None)

    def _limits(self) -> dict[tuple[str, ...], float]:
        names = {one.uid: (one.namespace, one.name) for one in self._agent.live()}
        return {
            (uuid, *names[uid]): float(limit_bytes)
            for uid, limits in self._set.items()
            if uid in names
            for uuid, limit_bytes in limits.items()
        }
