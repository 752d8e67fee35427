"""Checks once a second whether the containers of leases have ended, and tells the core.

While a pod's cgroup exists this costs one stat; the kubelet and NVML are only asked once it is gone. If NVML does not
answer for `without_nvml_s`, it is done without on GPUs that take no new slices because of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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
from shared.contracts.node_commands import LiveSlice
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
        without_nvml_s: float,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`list_slots` asks the kubelet; it raises PodResourcesError. `without_nvml_s`: how long NVML is waited for, in
        seconds. `clock` tells seconds that never go back; None: the event loop's."""
        self._ctx, self._node = ctx, node
        self._specs, self._list_slots, self._strategies = specs, list_slots, strategies
        self._plugin_dir, self._cgroup_dir = plugin_dir, cgroup_dir
        self._cgroups = PodCgroups(cgroup_dir)
        self._pods_on_gpus = PodsOnGpus(nvml_timeout_s)
        self._without_nvml_s = without_nvml_s
        self._clock = clock or asyncio.get_running_loop().time
        self._silent_since: float | None = None
        """When NVML was first found not to answer, if it has not answered in any check since."""
        self._kept: frozenset[tuple[str, str]] | None = None
        """The leases when it was cleaned up last."""
        self._without_nvml = ctx.metrics.counter(
            "kerf_agent_released_without_nvml_total",
            "Containers that ended by their cgroup and the kubelet's records alone, because NVML did not answer.",
        )

    async def start(self) -> None:
        self._remove_stale()
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
        """Ends the leases whose containers have ended. What cannot be confirmed shows in the health.

        Raises OSError if the checkpoint cannot be written; then the process ends.
        """
        self._remove_stale()
        leases = self._node.agent.containers()
        present = self._cgroups.present(lease.uid for lease in leases)
        absent = [lease for lease in leases if lease.uid not in present]
        if not absent:
            self._silent_since = None  # nothing asks NVML meanwhile
            self._ctx.health.set("release", ok=True)
            return
        if not self._cgroups.has_pod_cgroups():
            self._ctx.health.set("release", ok=False, detail=_NO_CGROUPS.format(self._cgroup_dir))
            return
        try:
            pod_resources = await self._list_slots()
            checkpoint = kubelet_checkpoint.load(self._plugin_dir, names.RESOURCE_SLOT, CDI_KIND)
        except (PodResourcesError, KubeletCheckpointError) as error:
            self._silent_since = None
            self._show_unconfirmed(len(absent), str(error))
            return
        on_gpus, silence = await self._ask_nvml()
        evidence = Evidence(
            cgroups=present,
            checkpoint=checkpoint,
            pod_resources=pod_resources,
            on_gpus=on_gpus,
            closed_gpus=self._node.devices.closed_gpus(),
        )
        ended = [] if silence and not self._is_overdue() else find_ended(absent, evidence)
        if silence and len(ended) < len(absent):
            self._show_unconfirmed(len(absent) - len(ended), silence)
        else:
            self._ctx.health.set("release", ok=True)
        for lease in ended:
            await self._end(lease, silence)
        self._remove_stale()
        if ended:
            self._node.mig.wake()

    async def _ask_nvml(self) -> tuple[frozenset[str] | None, str]:
        """UIDs of the pods that have a process on a GPU; or None, and why NVML does not answer."""
        try:
            on_gpus = await self._pods_on_gpus.now()
        except (Hung, pynvml.NVMLError) as error:
            if self._silent_since is None:
                self._silent_since = self._clock()
            return None, f"NVML: {error}"
        self._silent_since = None
        return on_gpus, ""

    def _is_overdue(self) -> bool:
        """Whether NVML is not waited for any more."""
        return self._silent_since is not None and self._clock() - self._silent_since >= self._without_nvml_s

    async def _end(self, lease: LiveSlice, silence: str) -> None:
        """Ends a lease. `silence`: why NVML does not answer, if it does not."""

        def has_ended() -> bool:
            """Checked when no start can come in between: a container that was started meanwhile has its pod's cgroup.
            Without NVML its GPUs must still take no new slices."""
            is_open = bool(silence) and not lease.gpus.keys() <= self._node.devices.closed_gpus()
            return not is_open and not self._cgroups.present((lease.uid,))

        if await self._node.end_container(lease.uid, lease.container, if_so=has_ended) and silence:
            self._without_nvml.add()
            self._ctx.log.warning(
                "ended_without_nvml", uid=lease.uid, container=lease.container, gpus=sorted(lease.gpus), why=silence
            )

    def _show_unconfirmed(self, containers: int, why: str) -> None:
        self._ctx.health.set(
            "release",
            ok=False,
            detail=f"{containers} containers seem to have ended, but that cannot be confirmed: {why}",
        )

    def _remove_stale(self) -> None:
        """Removes the CDI specs and the strategies' state of all containers that have ended, and of the servers for
        other nodes, whose leases end without this monitor. Withdraws the specs of those that must not start."""
        agent = self._node.agent
        kept = frozenset((lease.uid, lease.container) for lease in (*agent.live(), *agent.containers()))
        self._specs.withdraw(agent.store.away())  # each time: a start that was let through may just have written one
        if kept == self._kept:
            return
        self._specs.keep_only(kept)
        if self._strategies is not None:
            self._strategies.keep_only(kept)
        self._kept = kept
