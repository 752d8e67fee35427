"""Samples the use of the GPUs, publishes it on NATS and shows it in Prometheus."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from services.node_agent.core import Agent
from services.node_agent.devices import usage
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.devices.usage import GpuProcesses
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.samples import SliceUse, UsageSample
from shared.service import Context
from shared.telemetry.metrics import MIB, MILLI, Former

Series = dict[tuple[str, ...], float]
_SLICE = ("gpu", "namespace", "pod", "container")


class Observer(Protocol):
    """The part that enforces slices: it receives each sample, and adds what it knows."""

    def before_sample(self) -> None:
        """Called right before NVML is asked."""

    async def saw(self, found: tuple[GpuProcesses, ...]) -> None:
        """Receives what NVML reports now, before `beside` is called for the sample's slices."""

    def beside(self, uuid: str, use: SliceUse) -> SliceUse:
        """The same use of this GPU, with what is known of its enforcement."""


class Meter:
    """Publishes samples. The metrics hold the last sample only, so a pod's series end with the pod."""

    def __init__(self, ctx: Context, devices: NvmlDevices, agent: Agent, every_s: float) -> None:
        self._ctx, self._devices, self._agent, self._every_s = ctx, devices, agent, every_s
        self._last = UsageSample(node=agent.node, at_ms=0)
        self.observer: Observer | None = None
        show = ctx.metrics.observe_by
        show(
            "kerf_agent_gpu_used_bytes",
            "Memory in use by any process.",
            lambda: {(g.uuid,): g.used_mib * MIB for g in self._last.gpus},
            labels=("gpu",),
            former=Former("kerf_agent_gpu_used_mib", MIB),
        )
        show(
            "kerf_agent_gpu_foreign_bytes",
            "Memory of processes that have no slice.",
            lambda: {(g.uuid,): g.foreign_mib * MIB for g in self._last.gpus},
            labels=("gpu",),
            former=Former("kerf_agent_gpu_foreign_mib", MIB),
        )
        show(
            "kerf_agent_gpu_sm_ratio",
            "Part of the time in which any kernel ran.",
            lambda: {(g.uuid,): g.sm_milli * MILLI for g in self._last.gpus if g.sm_milli is not None},
            labels=("gpu",),
            former=Former("kerf_agent_gpu_sm_milli", MILLI),
        )
        show(
            "kerf_agent_slice_used_bytes",
            "Memory that a slice uses.",
            self._slice_memory,
            labels=_SLICE,
            former=Former("kerf_agent_slice_used_mib", MIB),
        )
        show(
            "kerf_agent_slice_sm_ratio",
            "Part of the SMs that a slice uses, if the driver reports it.",
            self._slice_sms,
            labels=_SLICE,
            former=Former("kerf_agent_slice_sm_milli", MILLI),
        )

    def start(self) -> None:
        self._ctx.spawn(self._samples(), name="usage")

    async def sample(self) -> None:
        now = self._ctx.now()
        if self.observer is not None:
            self.observer.before_sample()
        found = await self._devices.processes(int(now * 1_000_000))
        made = usage.sample(self._agent.node, int(now * 1000), found, self._agent.live(), self._devices.owner)
        if self.observer is not None:
            await self.observer.saw(found)
            made = _beside(made, self.observer)
        self._last = made
        if self._ctx.bus.connected:
            await self._ctx.bus.publish(subjects.usage(self._agent.node), encode(self._last))

    async def _samples(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.sample()

    def _slice_memory(self) -> Series:
        return {
            (g.uuid, s.namespace, s.name, s.container): s.memory_mib * MIB for g in self._last.gpus for s in g.slices
        }

    def _slice_sms(self) -> Series:
        return {
            (g.uuid, s.namespace, s.name, s.container): s.sm_milli * MILLI
            for g in self._last.gpus
            for s in g.slices
            if s.sm_milli is not None
        }


def _beside(made: UsageSample, observer: Observer) -> UsageSample:
    gpus = tuple(
        msgspec.structs.replace(gpu, slices=tuple(observer.beside(gpu.uuid, use) for use in gpu.slices))
        for gpu in made.gpus
    )
    return msgspec.structs.replace(made, gpus=gpus)
