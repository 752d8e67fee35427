"""Wiring of a node's devices: looks at them, listens for XIDs, and tells the agent's core what there is and how it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from services.node_agent import messages as m
from services.node_agent.cdi.nvml_library import preload
from services.node_agent.config import Config
from services.node_agent.core import Agent
from services.node_agent.devices.cgroups import Owner
from services.node_agent.devices.health import Health, Symptoms
from services.node_agent.devices.meter import Meter, Observer
from services.node_agent.devices.nvml import NvmlDevices
from shared.model.gpu import GpuState, Inventory, Strategy
from shared.service import Context

States = dict[str, tuple[GpuState, str]]


class DeviceMonitor:
    def __init__(
        self, ctx: Context, config: Config, agent: Agent, boot_id: str, tell: Callable[[m.Input], Awaitable[object]]
    ) -> None:
        """`tell` hands an input to the core."""
        self.offered: Callable[[str], tuple[Strategy, ...]] = lambda driver_version: ()  # noqa: ARG005 - nobody enforces anything yet
        """Strategies beside those that every node offers, by the version of its driver."""
        self._ctx, self._config, self._agent, self._boot_id, self._tell = ctx, config, agent, boot_id, tell
        before = agent.inventory if agent.inventory is not None and agent.inventory.boot_id == boot_id else None
        self._devices = NvmlDevices(timeout_s=config.nvml_timeout_s, sysfs=Path(config.sysfs), known=before)
        ctx.on_drain(self._devices.close)
        self._health = Health(
            agent.ailments,
            recover_s=config.recover_s,
            throttled_s=config.throttled_s,
            harmless_xids=config.harmless_xids,
        )
        self._clock = asyncio.get_running_loop().time
        """Health counts seconds, and wall clocks are set."""
        self._inventory = Inventory(node=config.node, boot_id=boot_id)
        self._symptoms: tuple[Symptoms, ...] = ()
        self._told: States = {}
        self._offered_elsewhere: Mapping[str, str] = {}
        self._dra = False
        self._alarm = asyncio.Event()
        self._meter = Meter(ctx, self._devices, agent, config.usage_s)
        self._xids = ctx.metrics.counter(
            "kerf_agent_xids_total", "XIDs that the driver reported, by GPU and number.", ("gpu", "xid")
        )
        ctx.metrics.observe_by(
            "kerf_agent_gpu_healthy", "1 where the GPU takes new slices.", self._healthy, labels=("gpu",)
        )
        ctx.metrics.observe_by(
            "kerf_agent_gpu_ecc_uncorrectable",
            "Uncorrectable ECC errors: volatile since the driver was loaded, aggregate in the GPU's life.",
            self._ecc,
            labels=("gpu", "counter"),
        )

    async def start(self) -> None:
        await self.look()
        self._devices.listen(self._on_xid)
        self._meter.start()
        self._ctx.spawn(self._looks(), name="devices")
        self._ctx.spawn(self._checks(), name="health")
        self._ctx.spawn(self._alarms(), name="alarms")

    async def look(self) -> None:
        """Asks the devices what there is, and how it is."""
        if not self._inventory.gpus:
            preload(self._config.host())  # the driver may come after the agent
        pods = frozenset(live.uid for live in self._agent.live())
        self._inventory = await self._devices.inventory(self._config.node, self._boot_id, pods)
        await self._ask()
        await self._say()

    async def check(self) -> None:
        """Asks the devices how they are, and says so where it is news."""
        await self._ask()
        if self._states() != self._told or self._health.ailments != self._agent.ailments:
            await self._say()

    async def say_again(self) -> None:
        """What is offered may have changed."""
        await self._say()

    def owner(self, pid: int) -> Owner | None:
        return self._devices.owner(pid)

    def observe(self, observer: Observer) -> None:
        """It sees every sample from now on, and says what it knows beside it."""
        self._meter.observer = observer

    async def serve_claims(self, served: bool) -> None:
        """Whether the kubelet takes ResourceClaims to this agent."""
        self._dra = served
        await self._say()

    async def set_offered_elsewhere(self, gpus_offered_elsewhere: Mapping[str, str]) -> None:
        """Which resources of other device plugins stand for GPUs of this node, by UUID."""
        if gpus_offered_elsewhere != self._offered_elsewhere:
            self._offered_elsewhere = gpus_offered_elsewhere
            await self._say()

    def clear_ailments(self, gpus: tuple[str, ...]) -> None:
        """A person says that these were seen to."""
        for uuid in gpus:
            self._health.clear_ailments(uuid)
        self._alarm.set()

    async def _ask(self) -> None:
        self._symptoms = await self._devices.symptoms()
        self._health.saw(self._symptoms, self._boot_id, self._devices.loaded, self._clock())

    async def _say(self) -> None:
        self._told = self._states()
        gpus = tuple(
            msgspec.structs.replace(gpu, state=self._told[gpu.uuid][0], reason=self._told[gpu.uuid][1])
            for gpu in self._inventory.gpus
        )
        self._ctx.health.set(
            "gpus", ok=True, detail="; ".join(f"{gpu.uuid}: {gpu.reason}" for gpu in gpus if gpu.state != "healthy")
        )
        strategies = (*self._inventory.strategies, *self.offered(self._inventory.driver_version))
        seen = msgspec.structs.replace(self._inventory, gpus=gpus, dra=self._dra, strategies=strategies)
        await self._tell(m.InventorySeen(seen, self._health.ailments))

    def _states(self) -> States:
        now = self._clock()
        return {gpu.uuid: self._state(gpu.uuid, now) for gpu in self._inventory.gpus}

    def _state(self, uuid: str, now: float) -> tuple[GpuState, str]:
        state, rival = self._health.state(uuid, now), self._offered_elsewhere.get(uuid)
        if rival is None or state[0] != "healthy":
            return state
        return (
            "suspect",
            f"another device plugin on this node offers it as {rival}, so it could be given twice; keep that plugin off the nodes of Kerf",
        )

    def _on_xid(self, uuid: str, number: int) -> None:
        self._xids.add(1, uuid or "unknown", str(number))
        self._health.xid(uuid, number, self._clock())
        self._alarm.set()

    async def _looks(self) -> None:
        while True:
            await asyncio.sleep(self._config.poll_s)
            await self.look()

    async def _checks(self) -> None:
        while True:
            await asyncio.sleep(self._config.health_s)
            await self.check()

    async def _alarms(self) -> None:
        """What an XID or a person said is told at once, whether or not the devices answer just now."""
        while True:
            await self._alarm.wait()
            self._alarm.clear()
            await self._say()

    def _healthy(self) -> dict[tuple[str, ...], float]:
        inventory = self._agent.inventory
        return {} if inventory is None else {(gpu.uuid,): float(gpu.state == "healthy") for gpu in inventory.gpus}

    def _ecc(self) -> dict[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {}
        for symptoms in self._symptoms:
            counts[symptoms.uuid, "volatile"], counts[symptoms.uuid, "aggregate"] = (
                symptoms.ecc_volatile,
                symptoms.ecc_aggregate,
            )
        return counts
