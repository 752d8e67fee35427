"""Checks once a second whether the containers of leases have ended, and tells the core.

While a pod's cgroup exists this costs one stat; the kubelet and NVML are only asked once it is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pynvml

from services.node_agent.cdi.writer import SpecDir
from services.node_agent.handover import kubelet_checkpoint
from services.node_agent.handover.device_plugin import CDI_KIND
from services.node_agent.handover.kubelet_checkpoint import KubeletCheckpointError
from services.node_agent.handover.podresources import PodResourcesError
from services.node_agent.handover.slots import PodResourcesEntry
from services.node_agent.node_service import NodeRuntime
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.release.evidence import Evidence, find_ended
from services.node_agent.release.processes import PodsOnGpus
from services.node_agent.strategy_service import Strategies
from services.node_agent.worker import Hung
from shared.bus.tasks import end
from shared.model import names
from shared.service import Context

CHECK_S = 1.0
_NO_CGROUPS = (
    "the kubelet creates no cgroup per pod (cgroupsPerQOS is off, or {} is not the host's), so the "
    "end of a container cannot be detected"
)


class ReleaseMonitor:
    def __init__(
        self,
        ctx: Context,
        node: NodeRuntime,
        *,
        specs: SpecDir,
        strategies: Strategies | None,
        list_slots: Callable[[], Awaitable[tuple[PodResourcesEntry, ...]]],
        plugin_dir: Path,
        cgroup_dir: Path,
        nvml_timeout_s: float,
    ) -> None:
        self._ctx, self._node, self._specs, self._list_slots, self._strategies = (
            ctx,
            node,
            specs,
            list_slots,
            strategies,
        )
        self._plugin_dir, self._cgroup_dir = plugin_dir, cgroup_dir
        self._cgroups = PodCgroups(cgroup_dir)
        self._pods_on_gpus = PodsOnGpus(nvml_timeout_s)

    async def start(self) -> None:
        self._remove_stale_specs()
        checks = self._ctx.spawn(self._run_checks(), name="release")

        async def close() -> None:
            """Ends the checks before their sources are closed."""
            await end(checks)

        self._ctx.on_drain(close)

    async def _run_checks(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            await self.check()

    async def check(self) -> None:
        leases = self._node.agent.containers()
        present = self._cgroups.present(lease.uid for lease in leases)
        absent = [lease for lease in leases if lease.uid not in present]
        if not absent:
            self._ctx.health.set("release", ok=True)
            return
        if not self._cgroups.has_pod_cgroups():
            self._ctx.health.set("release", ok=False, detail=_NO_CGROUPS.format(self._cgroup_dir))
            return
        try:
            pod_resources = await self._list_slots()
            checkpoint = kubelet_checkpoint.load(self._plugin_dir, names.RESOURCE_SLOT, CDI_KIND)
            on_gpus = await self._pods_on_gpus.now()
        except (PodResourcesError, KubeletCheckpointError, Hung, pynvml.NVMLError) as error:
            self._ctx.health.set(
                "release",
                ok=False,
                detail=f"{len(absent)} containers seem to have ended, but that cannot be confirmed: {error}",
            )
            return
        self._ctx.health.set("release", ok=True)
        evidence = Evidence(cgroups=present, checkpoint=checkpoint, pod_resources=pod_resources, on_gpus=on_gpus)
        ended = find_ended(absent, evidence)
        for lease in ended:
            # Checked again when no start can come in between: a container that was started meanwhile has its pod's
            # cgroup.
            await self._node.end_container(lease.uid, lease.container, if_so=partial(self._has_ended, lease.uid))
        self._remove_stale_specs()
        if ended:
            self._node.mig.wake()

    def _has_ended(self, uid: str) -> bool:
        return not self._cgroups.present((uid,))

    def _remove_stale_specs(self) -> None:
        """Removes the CDI specs and the strategies' state of all containers that have ended."""
        agent = self._node.agent
        kept = [(lease.uid, lease.container) for lease in (*agent.live(), *agent.containers())]
        self._specs.keep_only(kept)
        if self._strategies is not None:
            self._strategies.keep_only(kept)
