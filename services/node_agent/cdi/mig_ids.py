"""Reads the instance ids of MIG instances from NVML, by UUID."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pynvml

from services.node_agent.worker import Worker


class MigIdReader:
    def __init__(self, timeout_s: float) -> None:
        self._worker = Worker(timeout_s)
        self._one = asyncio.Lock()

    async def read(self, uuids: Iterable[str]) -> dict[str, tuple[int, int]]:
        """(GPU instance id, compute instance id) by UUID. Raises Hung, and ValueError if NVML does not know a UUID."""
        wanted = tuple(uuids)
        if not wanted:
            return {}
        async with self._one:
            return await self._worker.call(lambda: _read(wanted))


def _read(uuids: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    try:
        pynvml.nvmlInit()
        try:
            handles = {uuid: pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids}
            return {
                uuid: (pynvml.nvmlDeviceGetGpuInstanceId(handle), pynvml.nvmlDeviceGetComputeInstanceId(handle))
                for uuid, handle in handles.items()
            }
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise ValueError(f"NVML cannot find MIG instances {', '.join(uuids)}: {error}") from error
