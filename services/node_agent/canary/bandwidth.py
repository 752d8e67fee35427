"""Measures how fast each GPU exchanges data with its host, while the GPU is idle, and remembers the figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from services.node_agent.canary import verdict
from services.node_agent.canary.run import Canary, CanaryError
from services.node_agent.gate import Occupancy
from services.node_agent.measured_files import load, store
from shared.model.gpu import Gpu, Inventory
from shared.service import Context

ROOM_MIB = 1024
"""GPU memory that the measurement needs: its buffer and its CUDA context."""


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a GPU with a driver, in MB/s of pinned memory; 0: too fast to tell."""

    driver_version: str
    pci_bus_id: str
    to_device_mb_s: int
    from_device_mb_s: int


class HostBandwidth:
    """One figure for each GPU, driver and slot: measured once, and again only if one of these changes."""

    def __init__(self, ctx: Context, file: Path, canary: Callable[[], Canary]) -> None:
        """`file` keeps the figures. `canary` creates a canary for the driver as it is now."""
        self._ctx, self._file, self._canary = ctx, file, canary
        self._known = load(file, dict[str, Bandwidth]) or {}
        self._next_s: dict[str, float] = {}
        self._attempts: dict[str, int] = {}

    def told(self, gpu: Gpu, driver_version: str) -> Gpu:
        """The GPU with its figures, if they were measured with this driver in this slot."""
        found = self._figure(gpu, driver_version)
        if found is None:
            return gpu
        return msgspec.structs.replace(
            gpu, to_device_mb_s=found.to_device_mb_s, from_device_mb_s=found.from_device_mb_s
        )

    async def measure_one(self, inventory: Inventory | None, occupied: Callable[[], Occupancy]) -> bool:
        """Measures one GPU that has no figure and on which nothing runs. Returns whether there is a new figure.

        `occupied` returns what is handed over now. A container that starts on the GPU meanwhile shares its link to the
        host for a fifth of a second.
        """
        if inventory is None or not inventory.driver_version:
            return False
        now_s, busy = asyncio.get_running_loop().time(), occupied()
        gpu = next((gpu for gpu in inventory.gpus if self._is_due(gpu, inventory, busy, now_s)), None)
        if gpu is None:
            return False
        self._attempts[gpu.uuid] = self._attempts.get(gpu.uuid, 0) + 1
        self._next_s[gpu.uuid] = now_s + verdict.retry_after_s(self._attempts[gpu.uuid])
        try:
            line = await self._canary().copies(gpu.uuid, gpu.cpus)
        except (CanaryError, OSError) as error:
            self._ctx.log.warning("host_bandwidth_not_measured", gpu=gpu.uuid, why=str(error))
            return False
        self._attempts.pop(gpu.uuid)
        if not line["near"]:
            self._ctx.log.warning("host_bandwidth_from_afar", gpu=gpu.uuid, cpus=gpu.cpus, why="not among this agent's")
        self._known[gpu.uuid] = Bandwidth(
            driver_version=inventory.driver_version,
            pci_bus_id=gpu.pci_bus_id,
            to_device_mb_s=int(line["to_device_mb_s"]),
            from_device_mb_s=int(line["from_device_mb_s"]),
        )
        try:
            store(self._file, self._known)
        except OSError as error:
            self._ctx.log.warning("host_bandwidth_not_kept", error=str(error), effect="the next agent measures again")
        return True

    def _is_due(self, gpu: Gpu, inventory: Inventory, busy: Occupancy, now_s: float) -> bool:
        return (
            gpu.state == "healthy"
            and not gpu.mig_enabled
            and gpu.uuid not in busy
            and not gpu.foreign_mib
            and gpu.memory_mib >= ROOM_MIB
            and now_s >= self._next_s.get(gpu.uuid, 0.0)
            and self._figure(gpu, inventory.driver_version) is None
        )

    def _figure(self, gpu: Gpu, driver_version: str) -> Bandwidth | None:
        """What was measured of the GPU with this driver in this slot."""
        found = self._known.get(gpu.uuid)
        same = found is not None and (found.driver_version, found.pci_bus_id) == (driver_version, gpu.pci_bus_id)
        return found if same else None
