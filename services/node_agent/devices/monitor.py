"""Monitors a node's devices: polls them, receives XIDs, and passes inventory and health to the agent's core."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from services.node_agent import messages as m
from services.node_agent.cdi.nvml_library import preload
from services.node_agent.config import Config
from services.node_agent.core import Agent
from services.node_agent.devices.health import Health, Symptoms
from services.node_agent.devices.meter import Meter, Observer
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.devices.usage import GpuProcesses, Process
from services.node_agent.moves import can_move
from services.node_agent.processes.owner import Owner
from shared.model.gpu import Gpu, GpuState, HostMemory, Inventory
from shared.model.network import RemoteAbility
from shared.model.strategies import StrategyName
from shared.service import Context

States = dict[str, tuple[GpuState, str]]


class DeviceMonitor:
    def __init__(
        self,
        ctx: Context,
        config: Config,
        agent: Agent,
        *,
        boot_id: str,
        tell: Callable[[m.Input], Awaitable[object]],
        instances: Callable[[Gpu, Any], Gpu],
    ) -> None:
        """`tell` passes an input to the core. `instances`: see NvmlDevices."""
        self.offered: Callable[[str, tuple[StrategyName, ...]], tuple[StrategyName, ...]] = lambda _, always: always
        """Returns what the node offers, by the driver's version and what it offers as any other one."""
        self.measured: Callable[[Gpu, str], Gpu] = lambda gpu, _: gpu
        """Returns a GPU with what was measured of it with this driver version."""
        self.host_memory: Callable[[], HostMemory] = HostMemory
        """Returns what the node offers for suspended pods."""
        self._turns_on_any_gpu = config.turns_on_any_gpu and config.has_kubelet()
        self.remote: Callable[[], RemoteAbility] = RemoteAbility
        """Returns what the node offers for GPUs over the network."""
        self._ctx, self._config, self._agent, self._boot_id, self._tell = ctx, config, agent, boot_id, tell
        before = (
            agent.gpus.inventory
            if agent.gpus.inventory is not None and agent.gpus.inventory.boot_id == boot_id
            else None
        )
        self._devices = NvmlDevices(
            timeout_s=config.nvml_timeout_s,
            sysfs=Path(config.sysfs),
            known=before,
            pods_per_nic=config.pods_per_nic,
            instances=instances,
        )
        ctx.on_drain(self._devices.close)
        self._health = Health(
            agent.gpus.ailments,
            agent.gpus.histories,
            recover_s=config.recover_s,
            throttled_s=config.throttled_s,
            harmless_xids=config.harmless_xids,
        )
        self._clock = asyncio.get_running_loop().time
        """Not the wall clock, which may be set: health measures durations."""
        self._inventory = Inventory(node=config.node, boot_id=boot_id)
        self._symptoms: tuple[Symptoms, ...] = ()
        self._reported: States = {}
        self._offered_elsewhere: Mapping[str, str] = {}
        self._attached = not config.has_kubelet()
        """Whether the kubelet watches the slots. Before it does, it admits pods without any, whose containers never
        start; afterwards it refuses pods."""
        self._dra = False
        self._alarm = asyncio.Event()
        self._meter = Meter(ctx, self._devices, agent, config.usage_s)
        self._xids = ctx.metrics.counter(
            "kerf_agent_xids_total", "XIDs that the driver reported, by GPU and number.", ("gpu", "xid")
        )
        ctx.metrics.observe_by(
            "kerf_agent_gpu_healthy", "1 if the GPU takes new slices.", self._healthy, labels=("gpu",)
        )
        ctx.metrics.observe_by(
            "kerf_agent_gpu_ecc_uncorrectable",
            "Uncorrectable ECC errors: volatile since the driver was loaded, aggregate in the GPU's life.",
            self._ecc,
            labels=("gpu", "counter"),
        )

    async def start(self) -> None:
        await self.refresh()
        self._devices.listen(self._on_xid)
        self._meter.start()
        self._ctx.spawn(self._run_refreshes(), name="devices")
        self._ctx.spawn(self._run_checks(), name="health")
        self._ctx.spawn(self._report_alarms(), name="alarms")

    async def refresh(self) -> None:
        """Reads inventory and health, and reports them to the core."""
        if not self._inventory.gpus:
            preload(self._config.host())  # the driver may be loaded after the agent
        pods = frozenset(live.uid for live in self._agent.live())
        self._inventory = await self._devices.inventory(self._config.node, self._boot_id, pods)
        await self._read_symptoms()
        await self._report()

    async def check(self) -> None:
        """Reads the health, and reports it to the core if it has changed. When NVML answers again, reads the inventory,
        too: meanwhile parts of GPUs may have been released that processes still hold."""
        await self._read_symptoms()
        if self._devices.is_stale and self._symptoms and not any(seen.silent for seen in self._symptoms):
            await self.refresh()
            return
        known = self._agent.gpus.ailments, self._agent.gpus.histories
        if self._states() != self._reported or (self._health.ailments, self._health.histories) != known:
            await self._report()

    async def report_again(self) -> None:
        """Reports to the core again: the strategies that are offered may have changed."""
        await self._report()

    async def processes(self) -> tuple[GpuProcesses, ...]:
        """The processes on the GPUs now, without GPUs that do not answer."""
        return await self._devices.processes()

    async def running(self, uuids: Collection[str]) -> dict[str, tuple[Process, ...]]:
        """The processes on these GPUs now, by UUID, without GPUs that do not answer."""
        return await self._devices.running(uuids)

    async def limit_memory(self, uuid: str, cgroup: Path, limit_bytes: int) -> None:
        """Sets the driver's memory limit of a cgroup on a GPU, and reads it back. Raises MemoryLimitError."""
        await self._devices.limit_memory(uuid, cgroup, limit_bytes)

    def owner(self, pid: int) -> Owner | None:
        return self._devices.owner(pid)

    def observe(self, observer: Observer) -> None:
        """Sets the observer of usage samples."""
        self._meter.observer = observer

    async def serve_claims(self, served: bool) -> None:
        """Notes whether the kubelet passes ResourceClaims to this agent."""
        self._dra = served
        await self._report()

    async def set_offered_elsewhere(self, gpus_offered_elsewhere: Mapping[str, str]) -> None:
        """Notes the resources by which other device plugins offer GPUs of this node, by GPU UUID."""
        if gpus_offered_elsewhere != self._offered_elsewhere:
            self._offered_elsewhere = gpus_offered_elsewhere
            await self._report()

    def attach(self, attached: bool) -> None:
        """Notes whether the kubelet watches the slots: pods may come only while it does."""
        if attached != self._attached:
            self._attached = attached
            self._alarm.set()

    async def detach(self) -> None:
        """Reports that no pods may come, because this agent ends."""
        self._attached = False
        await self._report()

    def clear_ailments(self, gpus: tuple[str, ...]) -> None:
        """Forgets the ailments of GPUs that an operator has repaired."""
        for uuid in gpus:
            self._health.clear_ailments(uuid)
        self._alarm.set()

    def closed_gpus(self) -> frozenset[str]:
        """UUIDs of the GPUs that the core knows to take no new slices, and for which NVML does not answer."""
        silent, known = {seen.uuid for seen in self._symptoms if seen.silent or seen.lost}, self._agent.gpus.by_uuid
        return frozenset(uuid for uuid in silent & known.keys() if known[uuid].state != "healthy")

    async def _read_symptoms(self) -> None:
        self._symptoms = await self._devices.symptoms()
        self._health.update(self._symptoms, self._boot_id, self._devices.loaded, self._clock())

    async def _report(self) -> None:
        self._reported = self._states()
        driver_version = self._inventory.driver_version
        gpus = tuple(
            msgspec.structs.replace(
                self.measured(gpu, driver_version),
                state=self._reported[gpu.uuid][0],
                reason=self._reported[gpu.uuid][1],
            )
            for gpu in self._inventory.gpus
        )
        troubles = [f"{gpu.uuid}: {gpu.reason}" for gpu in gpus if gpu.state != "healthy"]
        if self._inventory.problem:
            troubles.append(f"this node offers no GPU: {self._inventory.problem}")
        # Ready all the same: what runs is kept in order, and a driver may be loaded after the agent.
        self._ctx.health.set("gpus", ok=True, detail="; ".join(troubles))
        strategies = self.offered(driver_version, self._inventory.strategies)
        remote = self.remote()
        if not self._attached:  # no container can start here, also none that uses another node's GPU
            remote = msgspec.structs.replace(remote, client=False)
        seen = msgspec.structs.replace(
            self._inventory,
            gpus=gpus,
            dra=self._dra,
            strategies=strategies,
            remote=remote,
            host_memory=self.host_memory(),
            any_gpu=self._turns_on_any_gpu and can_move(gpus, driver_version),
        )
        await self._tell(m.InventorySeen(seen, self._health.ailments, self._health.histories))

    def _states(self) -> States:
        now = self._clock()
        return {gpu.uuid: self._state(gpu.uuid, now) for gpu in self._inventory.gpus}

    def _state(self, uuid: str, now: float) -> tuple[GpuState, str]:
        state, resource = self._health.state(uuid, now), self._offered_elsewhere.get(uuid)
        if state[0] != "healthy":
            return state
        if self._devices.is_stale:
            return "suspect", "NVML was silent, and has not told yet what processes hold of its memory"
        if not self._attached:
            return (
                "suspect",
                "the kubelet does not watch this node's slots now; the health and the log of the node's agent say why",
            )
        if resource is None:
            return state
        return (
            "suspect",
            (
                f"another device plugin on this node offers it as {resource}, so it could be allocated twice; "
                "remove that plugin from the nodes that Kerf manages"
            ),
        )

    def _on_xid(self, uuid: str, number: int) -> None:
        self._xids.add(1, uuid or "unknown", str(number))
        self._health.xid(uuid, number, self._clock())
        self._alarm.set()

    async def _run_refreshes(self) -> None:
        while True:
            await asyncio.sleep(self._config.poll_s)
            await self.refresh()

    async def _run_checks(self) -> None:
        while True:
            await asyncio.sleep(self._config.health_s)
            await self.check()

    async def _report_alarms(self) -> None:
        """Reports an XID or an operator's order at once, even if the devices do not answer just now."""
        while True:
            await self._alarm.wait()
            self._alarm.clear()
            await self._report()

    def _healthy(self) -> dict[tuple[str, ...], float]:
        inventory = self._agent.gpus.inventory
        return {} if inventory is None else {(gpu.uuid,): float(gpu.state == "healthy") for gpu in inventory.gpus}

    def _ecc(self) -> dict[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {}
        for symptoms in self._symptoms:
            counts[symptoms.uuid, "volatile"], counts[symptoms.uuid, "aggregate"] = (
                symptoms.ecc_volatile,
                symptoms.ecc_aggregate,
            )
        return counts
