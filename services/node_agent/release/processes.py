"""Finds the pods with processes on the GPUs, by NVML and the processes' cgroups. Needs the host's PID namespace."""

from __future__ import annotations

from pathlib import Path

import pynvml
import structlog

from services.node_agent.processes.owner import owner_of
from services.node_agent.worker import Worker

log = structlog.get_logger("release")


class PodsOnGpus:
    def __init__(self, timeout_s: float, proc: Path = Path("/proc")) -> None:
        self._worker = Worker(timeout_s)
        self._proc = proc

    async def now(self) -> frozenset[str]:
        """UIDs of the pods that have a process on a GPU. Raises Hung or NVMLError if NVML does not answer.

        A single GPU that does not answer counts as empty: a process that hangs on it also keeps its cgroup. The kernel
        leaves a process in its cgroup until its last thread has closed its files (`do_exit`).
        """
        pids = await self._worker.call(_pids)
        owners = (owner_of(pid, self._proc) for pid in pids)
        return frozenset(of.pod_uid for of in owners if of is not None and of.pod_uid)


def _pids() -> frozenset[int]:
    pynvml.nvmlInit()
    try:
        found: set[int] = set()
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found.update(process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
            except pynvml.NVMLError as error:
                log.warning("processes_not_listed", gpu=index, error=str(error))
        return frozenset(found)
    finally:
        pynvml.nvmlShutdown()
