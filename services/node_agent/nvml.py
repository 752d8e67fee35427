"""The node's inventory through NVML: GPUs, how they are linked, and who else has memory on them.

pynvml loads libnvidia-ml.so.1 and looks symbols up when they are called, so an older driver costs a field and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pynvml
import structlog

from services.node_agent.worker import Hung, Worker
from shared.model.gpu import Gpu, Inventory, Link
from shared.model.units import MIB

Pcie = Literal["internal", "single", "multiple", "hostbridge", "node", "system"]

_ANCESTORS: dict[int, Pcie] = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}
_P2P_READ = 0  # pynvml 13 has NVML_P2P_CAPS_INDEX_READ as a tuple, by a stray comma
_SWITCH = 2
_MOST_LINKS = 36

log = structlog.get_logger("nvml")


class NvmlDevices:
    """Never raises: a GPU that cannot be asked is shown suspect, with the reason."""

    def __init__(self, *, timeout_s: float, is_pods: Callable[[int], bool] | None = None) -> None:
        """`is_pods` says of a process id whether it belongs to a pod; by default its cgroup does."""
        self._worker: Worker[Inventory] = Worker(timeout_s)
        self._is_pods = is_pods or _in_kubepods
        self._last: Inventory | None = None
        self._started = False

    async def inventory(self, node: str, boot_id: str) -> Inventory:
        try:
            found = await self._worker.call(lambda: self._read(node, boot_id))
        except Hung as error:
            return self._suspect(node, boot_id, f"NVML hangs: {error}")
        except pynvml.NVMLError as error:
            self._started = False  # begun anew at the next look: a reloaded driver needs it
            return self._suspect(node, boot_id, f"NVML: {error}")
        self._last = found
        return found

    async def close(self) -> None:
        """Lets go of NVML, if it answers."""
        if not self._started:
            return
        empty = Inventory(node="", boot_id="")
        try:
            await self._worker.call(lambda: (pynvml.nvmlShutdown(), empty)[1])
        except (Hung, pynvml.NVMLError) as error:
            log.warning("nvml_not_closed", error=str(error))

    def _suspect(self, node: str, boot_id: str, reason: str) -> Inventory:
        log.warning("nvml_not_answering", reason=reason)
        last = self._last or Inventory(node=node, boot_id=boot_id)
        gpus = tuple(msgspec.structs.replace(gpu, state="suspect", reason=reason) for gpu in last.gpus)
        return msgspec.structs.replace(last, gpus=gpus)

    def _read(self, node: str, boot_id: str) -> Inventory:
        if not self._started:
            pynvml.nvmlInit()
            self._started = True
        known = {} if self._last is None else {gpu.index: gpu for gpu in self._last.gpus}
        handles: dict[int, Any] = {}
        gpus: list[Gpu] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                gpus.append(_gpu(handle, index, self._is_pods))
                handles[index] = handle
            except pynvml.NVMLError as error:
                log.warning("gpu_not_answering", index=index, error=str(error))
                if index in known:
                    gpus.append(msgspec.structs.replace(known[index], state="unhealthy", reason=f"NVML: {error}"))
        cuda = _optional(pynvml.nvmlSystemGetCudaDriverVersion) or 0
        return Inventory(
            node=node, boot_id=boot_id, gpus=tuple(gpus), links=_links(handles), driver_version=_text(_optional(pynvml.nvmlSystemGetDriverVersion)),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        )  # fmt: skip


def _gpu(handle: Any, index: int, is_pods: Callable[[int], bool]) -> Gpu:
    capability = _optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    numa = _optional(pynvml.nvmlDeviceGetNumaNodeId, handle)
    mig = _optional(pynvml.nvmlDeviceGetMigMode, handle)
    strangers = [p for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if not is_pods(p.pid)]
    return Gpu(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)), index=index, model=_text(pynvml.nvmlDeviceGetName(handle)).replace(" ", "-"),
        memory_mib=pynvml.nvmlDeviceGetMemoryInfo(handle).total // MIB, compute_capability="" if capability is None else f"{capability[0]}.{capability[1]}",
        pci_bus_id=_text(pynvml.nvmlDeviceGetPciInfo(handle).busId), numa_node=-1 if numa is None else numa,
        mig_enabled=mig is not None and mig[0] == 1, foreign_mib=-(-sum(p.usedGpuMemory or 0 for p in strangers) // MIB),
    )  # fmt: skip


def _links(handles: dict[int, Any]) -> tuple[Link, ...]:
    if len(handles) < 2:
        return ()
    bus_ids = {index: _text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower() for index, handle in handles.items()}
    peers = {index: _active_links(handle) for index, handle in handles.items()}
    found = []
    for a, first in handles.items():
        for b, second in handles.items():
            if a >= b:
                continue
            direct = sum(bus == bus_ids[b] for bus in peers[a])
            through_switch = min(peers[a].count("switch"), peers[b].count("switch"))
            ancestor = _optional(pynvml.nvmlDeviceGetTopologyCommonAncestor, first, second)
            status = _optional(pynvml.nvmlDeviceGetP2PStatus, first, second, _P2P_READ)
            pcie = _ANCESTORS.get(50 if ancestor is None else ancestor, "system")
            found.append(Link(a=a, b=b, nvlinks=direct or through_switch, pcie=pcie, p2p=status in (None, pynvml.NVML_P2P_STATUS_OK)))
    return tuple(found)


def _active_links(handle: Any) -> list[str]:
    """What stands at the other end of each active NVLink: a PCI bus id, or "switch"."""
    ends: list[str] = []
    for link in range(_MOST_LINKS):
        if not _optional(pynvml.nvmlDeviceGetNvLinkState, handle, link):
            continue
        if _optional(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link) == _SWITCH:
            ends.append("switch")
            continue
        remote = _optional(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        ends.append("" if remote is None else _text(remote.busId).lower())
    return ends


def _optional(ask: Callable[..., Any], *arguments: Any) -> Any:
    """None where this driver or device does not know the question; any other failure is the caller's."""
    try:
        return ask(*arguments)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NoData):
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _in_kubepods(pid: int) -> bool:
    """A process that cannot be looked at counts as a pod's: booking it as a stranger's would count our own slices twice
    where the agent does not see the host's processes."""
    try:
        return "kubepods" in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return True
