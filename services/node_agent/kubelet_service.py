"""Connects the agent to the node's kubelet: hand-over, CDI specs, and the release of ended containers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from services.node_agent import messages as m
from services.node_agent.cdi.slices import SliceWriter
from services.node_agent.cdi.spec import ContainerEdits
from services.node_agent.cdi.writer import SpecDir
from services.node_agent.config import Config
from services.node_agent.handover.device_plugin import BUCKETS, CDI_KIND, SlotPlugin
from services.node_agent.handover.dra import ClaimPlugin
from services.node_agent.handover.dra_registration import ClaimDriverServer
from services.node_agent.handover.nri.client import NriClient
from services.node_agent.handover.nri.cpusets import PodCpusets
from services.node_agent.handover.nri.plugin import CpuPlugin
from services.node_agent.handover.other_plugins import gpus_offered_elsewhere
from services.node_agent.handover.podresources import PodResources, PodResourcesError
from services.node_agent.handover.registration import PLUGIN_DIR, DevicePluginServer
from services.node_agent.handover.runtime_monitor import RuntimeMonitor
from services.node_agent.node_service import NodeRuntime
from services.node_agent.release.monitor import ReleaseMonitor
from shared.bus.tasks import end
from shared.model import names
from shared.model.gpu import Gpu, Nic
from shared.model.grant import Grant
from shared.service import Context

OTHER_PLUGINS_POLL_S = 30.0
"""How often the agent asks the kubelet whether other device plugins offer GPUs of this node."""


class KubeletAdapter:
    def __init__(self, ctx: Context, config: Config, node: NodeRuntime) -> None:
        self._ctx, self._config, self._node = ctx, config, node
        self._seconds = ctx.metrics.histogram(
            "kerf_agent_handover_seconds",
            "Time that the agent adds to a container's start, by the kubelet's call.",
            ("step",),
            buckets=BUCKETS,
        )
        self._refused = ctx.metrics.counter("kerf_agent_refused_total", "Hand-overs refused, by reason.", ("code",))
        self._handed_over = ctx.metrics.counter("kerf_agent_handed_over_total", "Slices handed over.")
        self._plugins = Path(config.kubelet_dir) / PLUGIN_DIR
        specs = SpecDir(Path(config.cdi_dir), CDI_KIND)
        self._slices = SliceWriter(
            specs,
            config.host(),
            grant_of=node.agent.store.grant_of,
            gpus=self._gpus,
            nics=self._nics,
            enforced=self._enforced,
            gpushare_unit=config.gpushare_unit,
            mig_ids=node.mig.ids,
            remote=node.servers.edits,
        )
        self._pods = PodResources(Path(config.kubelet_dir), names.RESOURCE_SLOT)
        ctx.on_drain(self._pods.close)
        self._runtime = RuntimeMonitor(ctx, config.host(), config.runtime_sockets, config.cdi_dir)
        self._device_plugin = DevicePluginServer(
            ctx, Path(config.kubelet_dir), self._plugin, lambda: self._runtime.obstacle
        )
        self._bind_memory = config.memory_affinity == "near"
        self._cpusets = PodCpusets(Path(config.cgroup_dir), Path(config.sysfs), sizes=self._bind_memory)
        self._placed = ctx.metrics.counter(
            "kerf_agent_cpu_affinity_total", "Containers with GPUs, by the outcome of CPU placement.", ("outcome",)
        )
        self._release = ReleaseMonitor(
            ctx,
            node,
            specs=specs,
            strategies=node.strategies,
            list_slots=self._pods.list,
            plugin_dir=self._plugins,
            cgroup_dir=Path(config.cgroup_dir),
            nvml_timeout_s=config.nvml_timeout_s,
            without_nvml_s=config.release_without_nvml_s,
        )

    async def start(self) -> None:
        await self._runtime.start()
        await self._device_plugin.start()
        if self._config.dra or self._node.agent.store.has_claims():
            plugin = ClaimPlugin(
                agent=self._node,
                specs=self._slices,
                gpus=self._gpus,
                seconds=self._seconds,
                refused=self._refused,
                handed=self._handed,
                obstacle=lambda: self._runtime.obstacle,
            )
            await ClaimDriverServer(
                self._ctx, Path(self._config.kubelet_dir), plugin, self._on_driver_registered
            ).start()
        if self._config.cpu_affinity == "near":
            await NriClient(self._ctx, self._config.host().seen(self._config.nri_socket), self._cpus).start()
        await self._release.start()
        other_plugins_check = self._ctx.spawn(self._check_other_plugins(), name="other_plugins")

        async def close() -> None:
            """Ends the check before the channel to the kubelet is closed."""
            await end(other_plugins_check)

        self._ctx.on_drain(close)
        self._ctx.on_drain(self._leave)

    async def _on_driver_registered(self, registered: bool) -> None:
        """Where `dra` is off the driver is served for the pods that have claims already, for no kubelet can end them
        without it. The node takes no new ones."""
        await self._node.devices.serve_claims(registered and self._config.dra)

    async def _leave(self) -> None:
        """Says first that this node takes no new slices: without an agent the kubelet has no slots and refuses pods."""
        try:
            await self._node.devices.detach()
        except OSError as error:  # no checkpoint can be written: the agent ends because of that
            self._ctx.log.warning("end_not_announced", error=str(error))
            return
        if not await self._node.publisher.publish_inventories():
            await self._node.publisher.publish_inventories()

    async def _check_other_plugins(self) -> None:
        while True:
            try:
                offered = await self._pods.list_other_devices()
            except PodResourcesError as error:
                self._ctx.log.warning("other_plugins_not_known", error=str(error))
            else:
                await self._node.devices.set_offered_elsewhere(gpus_offered_elsewhere(offered, self._gpus().values()))
            await asyncio.sleep(OTHER_PLUGINS_POLL_S)

    def _plugin(self, on_watch: Callable[[bool], None]) -> SlotPlugin:
        def watched(begun: bool) -> None:
            on_watch(begun)
            self._node.devices.attach(self._device_plugin.watched)

        return SlotPlugin(
            agent=self._node,
            specs=self._slices,
            list_slots=self._pods.list,
            plugin_dir=self._plugins,
            count=self._config.slots,
            seconds=self._seconds,
            refused=self._refused,
            handed=self._handed,
            on_watch=watched,
        )

    def _cpus(self) -> CpuPlugin:
        return CpuPlugin(
            gpus_of=self._gpus_of,
            allowed=self._cpusets.allowed,
            memory=self._bind_memory,
            decided=self._on_cpus_decided,
        )

    def _on_cpus_decided(self, outcome: str, took_s: float | None) -> None:
        self._placed.add(1, outcome)
        if took_s is not None:
            self._seconds.observe(took_s, "cpus")

    def _handed(self, order: m.HandOver, took_s: float) -> None:
        self._handed_over.add()
        telemetry = self._ctx.telemetry
        end_ns = telemetry.now_ns()
        telemetry.pod_span(
            order.uid,
            "hand-over",
            start_ns=end_ns - int(took_s * 1e9),
            end_ns=end_ns,
            attributes={
                "k8s.node.name": self._config.node,
                "kerf.container": order.container,
                "kerf.grant": order.grant_id,
            },
        )

    async def _enforced(self, order: m.HandOver, grant: Grant | None) -> ContainerEdits:
        strategies = self._node.strategies
        return ContainerEdits() if strategies is None else await strategies.edits(order, grant)

    def _gpus(self) -> Mapping[str, Gpu]:
        inventory = self._node.agent.gpus.inventory
        return {} if inventory is None else {gpu.uuid: gpu for gpu in inventory.gpus}

    def _nics(self) -> Mapping[str, Nic]:
        inventory = self._node.agent.gpus.inventory
        return {} if inventory is None else {nic.name: nic for nic in inventory.nics}

    def _gpus_of(self, uid: str, container: str) -> tuple[Gpu, ...]:
        """The GPUs of this node that are granted to a container. Empty if one of them is not known."""
        grant, known = self._node.agent.store.grant_of(uid), self._gpus()
        share = None if grant is None else grant.containers.get(container)
        here = () if share is None else tuple(gpu.uuid for gpu in share.gpus if gpu.node == self._config.node)
        return tuple(known[uuid] for uuid in here) if all(uuid in known for uuid in here) else ()
