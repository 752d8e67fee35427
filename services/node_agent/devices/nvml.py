"""Reads the node's devices through NVML: one call at a time, each in a thread that may hang without blocking the
process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pynvml
import structlog

from services.node_agent.devices import describe, links, memory_limits, symptoms, usage
from services.node_agent.devices.events import Events
from services.node_agent.devices.health import Symptoms
from services.node_agent.devices.memory_limits import MemoryLimitError
from services.node_agent.devices.sysfs import Sysfs
from services.node_agent.nvml_calls import NO_DRIVER, optional, text
from services.node_agent.processes.owner import Owner, owner_of
from services.node_agent.worker import Hung, Worker
from shared.model.gpu import Gpu, Inventory, Link
from shared.model.strategies import ALWAYS_OFFERED, MIG

T = TypeVar("T")

log = structlog.get_logger("nvml")

LINKS_EVERY = 6
"""The links are read again after this many inventories."""


class NvmlDevices:
    """The node's GPUs. Never raises: a GPU that does not answer is reported with the reason, and a known one stays in
    the inventory."""

    def __init__(
        self,
        *,
        timeout_s: float,
        sysfs: Path = Path("/sys"),
        owner: Callable[[int], Owner | None] = owner_of,
        known: Inventory | None = None,
        pods_per_nic: int = 1,
        instances: Callable[[Gpu, Any], Gpu] = lambda gpu, _: gpu,
    ) -> None:
        """`instances`: returns a GPU, of which the handle is given, with the MIG instances that it offers. `known`: the
        inventory that an earlier agent read in this boot, so that a GPU which is lost now still has its
        name. `owner` returns the owner of a process."""
        self._worker = Worker(timeout_s)
        self._turn = asyncio.Lock()
        self._sysfs, self._owner, self._instances = Sysfs(sysfs, pods_per_nic), owner, instances
        self._last = known
        self._started = False
        self._unloaded = False
        self.loaded = 0
        """Incremented each time the driver is found loaded again."""
        self.is_stale = False
        """Whether NVML was silent after the inventory was read: what processes hold of the GPUs is not known since."""
        self._sampled_us: dict[str, int] = {}
        self._linked: tuple[int, frozenset[str], tuple[Link, ...]] = (0, frozenset(), ())
        """How often the links have been reported since they were read, the UUIDs of their GPUs, and the links."""
        self._events: Events | None = None

    async def inventory(self, node: str, boot_id: str, pods: frozenset[str] = frozenset()) -> Inventory:
        """The inventory, or the last one if NVML does not answer. Every state is healthy: health is judged elsewhere.

        `pods`: UIDs of the pods that have slices; the memory of all others is foreign.
        """
        why = "the driver reports no GPU"
        try:
            self._last = await self._ask(lambda: self._read(node, boot_id, pods))
            self.is_stale = False
        except (Hung, pynvml.NVMLError) as error:
            self.is_stale = True
            log.warning("nvml_not_answering", reason=str(error))
            why = f"NVML: {error}"
        found = self._last or Inventory(node=node, boot_id=boot_id)
        return found if found.gpus else msgspec.structs.replace(found, problem=why)

    async def symptoms(self) -> tuple[Symptoms, ...]:
        """The symptoms of the GPUs of the last inventory."""
        known = () if self._last is None else self._last.gpus
        try:
            return await self._ask(lambda: tuple(_symptoms(gpu) for gpu in known))
        except Hung as error:
            self.is_stale = True
            return tuple(Symptoms(uuid=gpu.uuid, silent=f"NVML hangs: {error}") for gpu in known)
        except pynvml.NVMLError as error:
            self.is_stale = True
            return tuple(Symptoms(uuid=gpu.uuid, silent=f"NVML: {error}") for gpu in known)

    async def processes(self, now_us: int | None = None) -> tuple[usage.GpuProcesses, ...]:
        """The processes on the GPUs of the last inventory, without GPUs that do not answer.

        SM use is since the last call with a time.
        """
        known = () if self._last is None else self._last.gpus
        try:
            return await self._ask(
                lambda: tuple(found for gpu in known if (found := self._processes(gpu, now_us)) is not None)
            )
        except (Hung, pynvml.NVMLError) as error:
            log.warning("usage_not_read", reason=str(error))
            return ()

    async def running(self, uuids: Collection[str]) -> dict[str, tuple[usage.Process, ...]]:
        """The processes on some GPUs of the last inventory, by UUID, without GPUs that do not answer."""
        known = () if self._last is None else tuple(gpu for gpu in self._last.gpus if gpu.uuid in uuids)
        try:
            return await self._ask(lambda: {gpu.uuid: found for gpu in known if (found := _running(gpu)) is not None})
        except (Hung, pynvml.NVMLError) as error:
            log.warning("processes_not_read", reason=str(error))
            return {}

    async def limit_memory(self, uuid: str, cgroup: Path, limit_bytes: int) -> None:
        """Sets the driver's memory limit of a cgroup on a GPU, and reads it back. Raises MemoryLimitError."""
        gpu = None if self._last is None else next((gpu for gpu in self._last.gpus if gpu.uuid == uuid), None)
        if gpu is None:
            raise MemoryLimitError(f"GPU {uuid} is not known")

        def limit() -> MemoryLimitError | None:
            """Returns the error: one that is raised has NVML started anew."""
            try:
                memory_limits.set_limit(_handle(gpu), cgroup, limit_bytes)
            except MemoryLimitError as error:
                return error
            return None

        try:
            failed = await self._ask(limit)
        except (Hung, pynvml.NVMLError) as error:
            raise MemoryLimitError(f"NVML: {error}") from error
        if failed is not None:
            raise failed

    def owner(self, pid: int) -> Owner | None:
        return self._owner(pid)

    def listen(self, on_xid: Callable[[str, int], None]) -> None:
        """From now on, calls `on_xid` with UUID and number of each XID."""
        self._events = Events(on_xid)

    async def close(self) -> None:
        """Shuts NVML down, if it answers."""
        if self._events is not None:
            self._events.stop()
        if not self._started:
            return
        try:
            async with self._turn:
                await self._worker.call(pynvml.nvmlShutdown)
        except (Hung, pynvml.NVMLError) as error:
            log.warning("nvml_not_closed", error=str(error))

    async def _ask(self, question: Callable[[], T]) -> T:
        """Runs a question to NVML. Raises Hung, or NVMLError if NVML as a whole does not answer."""
        async with self._turn:
            loaded_before = self.loaded
            answer = await self._worker.call(lambda: self._initialised(question))
            if self.loaded != loaded_before and self._events is not None:
                self._events.register_again()
            return answer

    def _initialised(self, question: Callable[[], T]) -> T:
        try:
            if not self._started:
                pynvml.nvmlInit()
                self._started = True
                self.loaded += self._unloaded
                self._unloaded = False
            return question()
        except pynvml.NVMLError as error:
            self._unloaded |= isinstance(
                error, pynvml.NVMLError_DriverNotLoaded | pynvml.NVMLError_LibRmVersionMismatch
            )
            if self._started:
                # NVML is initialised again at the next question: a driver that was loaded again needs it.
                self._started = False
                with contextlib.suppress(pynvml.NVMLError):  # the caller gets the original error
                    pynvml.nvmlShutdown()
            raise

    def _read(self, node: str, boot_id: str, pods: frozenset[str]) -> Inventory:
        known = {} if self._last is None else {gpu.index: gpu for gpu in self._last.gpus}
        handles: dict[int, Any] = {}
        gpus: list[Gpu] = []
        cliques: set[str] = set()
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                gpu = self._instances(describe.gpu(handle, index, self._sysfs), handle)
                foreign_mib = usage.shares(usage.running(handle), pods, self._owner)[1]
                cliques.add(describe.fabric(handle).clique)
                gpus.append(msgspec.structs.replace(gpu, foreign_mib=foreign_mib))
                handles[index] = handle
            except NO_DRIVER:
                raise
            except pynvml.NVMLError as error:
                log.warning("gpu_not_answering", index=index, error=str(error))
                if index in known:
                    gpus.append(known[index])
        cuda = optional(pynvml.nvmlSystemGetCudaDriverVersion) or 0
        numa = {gpu.index: gpu.numa_node for gpu in gpus}
        nics = self._sysfs.nics({gpu.index: gpu.pci_bus_id for gpu in gpus}, numa)
        mig = any(gpu.mig_instances or gpu.mig_on_demand for gpu in gpus)
        return Inventory(
            node=node,
            boot_id=boot_id,
            gpus=tuple(gpus),
            links=self._links(handles, gpus),
            nics=nics,
            strategies=(*ALWAYS_OFFERED, MIG) if mig else ALWAYS_OFFERED,
            driver_version=text(optional(pynvml.nvmlSystemGetDriverVersion)),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            clique=cliques.pop() if len(cliques) == 1 else "",
        )

    def _links(self, handles: dict[int, Any], gpus: list[Gpu]) -> tuple[Link, ...]:
        """The links, read at intervals because that takes a hundred calls per GPU, and whenever other GPUs answer."""
        reported, uuids, found = self._linked
        now = frozenset(gpu.uuid for gpu in gpus if gpu.index in handles)
        if now != uuids or reported >= LINKS_EVERY:
            reported, found = 0, links.links(handles)
        self._linked = (reported + 1, now, found)
        return found

    def _processes(self, gpu: Gpu, now_us: int | None) -> usage.GpuProcesses | None:
        try:
            found = usage.read(_handle(gpu), gpu.uuid, self._sampled_us.get(gpu.uuid, 0))
        except pynvml.NVMLError as error:
            log.warning("gpu_usage_not_read", uuid=gpu.uuid, error=str(error))
            return None
        if now_us is not None:
            self._sampled_us[gpu.uuid] = now_us
        return found


def _handle(gpu: Gpu) -> Any:
    """The handle of a GPU. Raises pynvml.NVMLError.

    The index alone is not enough: indices shift when a GPU has fallen off the bus and NVML was initialised again.
    """
    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu.index)
    if text(pynvml.nvmlDeviceGetUUID(handle)) != gpu.uuid:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return handle


def _running(gpu: Gpu) -> tuple[usage.Process, ...] | None:
    try:
        return usage.running(_handle(gpu))
    except NO_DRIVER:
        raise
    except pynvml.NVMLError as error:
        log.warning("gpu_processes_not_read", uuid=gpu.uuid, error=str(error))
        return None


def _symptoms(gpu: Gpu) -> Symptoms:
    try:
        handle = _handle(gpu)
    except NO_DRIVER:
        raise
    except pynvml.NVMLError as error:
        return Symptoms(uuid=gpu.uuid, lost=str(error))
    return symptoms.symptoms(handle, gpu.uuid)
