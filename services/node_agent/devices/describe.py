"""Describes one GPU, by NVML and sysfs: its properties, its MIG instances, its place in an NVSwitch fabric."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pynvml
import structlog

from services.node_agent.devices.sysfs import Sysfs
from services.node_agent.nvml_calls import optional, text
from shared.model.gpu import Gpu
from shared.model.mig import MigInstance, canonical_profile
from shared.model.units import MIB

log = structlog.get_logger("nvml")

_PROFILE = re.compile(r"MIG ([0-9][0-9a-z.+]*)$")
_MASK_WORDS = 32
"""Words of 64 CPUs: more CPUs than any machine with GPUs has under Linux."""
FABRIC_UP = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED


def gpu(handle: Any, index: int, sysfs: Sysfs) -> Gpu:
    """Describes a GPU; its state and foreign memory are set elsewhere.

    Raises pynvml.NVMLError if it does not answer.
    """
    capability = optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    mig = optional(pynvml.nvmlDeviceGetMigMode, handle)
    c2c = optional(pynvml.nvmlDeviceGetC2cModeInfoV, handle)
    minor = optional(pynvml.nvmlDeviceGetMinorNumber, handle)
    bus_id = text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    mig_enabled = mig is not None and mig[0] == 1
    return Gpu(
        uuid=text(pynvml.nvmlDeviceGetUUID(handle)),
        index=index,
        model=text(pynvml.nvmlDeviceGetName(handle)).replace(" ", "-"),
        memory_mib=pynvml.nvmlDeviceGetMemoryInfo(handle).total // MIB,
        compute_capability="" if capability is None else f"{capability[0]}.{capability[1]}",
        pci_bus_id=bus_id,
        minor=-1 if minor is None else minor,
        numa_node=_numa_node(handle, bus_id, sysfs),
        cpus=_cpus(handle),
        c2c=c2c is not None and bool(c2c.isC2cEnabled),
        mig_enabled=mig_enabled,
        mig_instances=_instances(handle) if mig_enabled else (),
    )


def _numa_node(handle: Any, bus_id: str, sysfs: Sysfs) -> int:
    """The NUMA node of its PCIe link, or -1.

    Not nvmlDeviceGetNumaNodeId: that is the NUMA node of the GPU's own memory, on machines where it forms one.
    """
    node = sysfs.numa_node(bus_id)
    if node >= 0:
        return node
    mask = optional(pynvml.nvmlDeviceGetMemoryAffinity, handle, 1, pynvml.NVML_AFFINITY_SCOPE_NODE)
    return next((bit for bit in range(64) if mask is not None and mask[0] >> bit & 1), -1)


def _cpus(handle: Any) -> str:
    mask = optional(pynvml.nvmlDeviceGetCpuAffinity, handle, _MASK_WORDS)
    return (
        ""
        if mask is None
        else cpu_list([64 * place + bit for place, word in enumerate(mask) for bit in range(64) if word >> bit & 1])
    )


def cpu_list(cpus: list[int]) -> str:
    """Formats CPU numbers as the kernel does: "0-3,8"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _instances(handle: Any) -> tuple[MigInstance, ...]:
    """The MIG instances that a container can get whole: of a known profile, with one compute instance that fills
    them."""
    found: list[MigInstance] = []
    for place in range(optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            name, slices = text(pynvml.nvmlDeviceGetName(instance)), pynvml.nvmlDeviceGetAttributes_v2(instance)
            uuid, placed = text(pynvml.nvmlDeviceGetUUID(instance)), _start(handle, instance)
        except pynvml.NVMLError_NotFound:
            continue  # no instance in this position
        except pynvml.NVMLError_NoPermission:
            log.warning("mig_not_readable", why="the agent must be privileged to read the placement of MIG instances")
            return ()
        written = _PROFILE.search(name)
        profile = canonical_profile(written[1].replace("+", ".")) if written else None
        if profile is not None and slices.computeInstanceSliceCount == slices.gpuInstanceSliceCount:
            found.append(MigInstance(profile=profile, start=placed, uuid=uuid))
        else:
            log.warning("mig_instance_not_offered", name=name, uuid=uuid)
    return tuple(sorted(found, key=lambda instance: instance.start))


def _start(handle: Any, instance: Any) -> int:
    gpu_instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, pynvml.nvmlDeviceGetGpuInstanceId(instance))
    return int(pynvml.nvmlGpuInstanceGetInfo(gpu_instance).placement.start)


class Fabric(msgspec.Struct, frozen=True):
    """A GPU's place in an NVSwitch fabric. `clique` is written as in GPU feature discovery; "" if there is none."""

    up: bool = True
    clique: str = ""


def fabric(handle: Any) -> Fabric:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    asked: Callable[..., Any] = pynvml.nvmlDeviceGetGpuFabricInfoV
    if optional(asked, handle, pynvml.byref(info)) is None or info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return Fabric()
    if info.state != FABRIC_UP or info.status != pynvml.NVML_SUCCESS:
        return Fabric(up=False)
    cluster = bytes(info.clusterUuid).hex()
    if not cluster.strip("0"):
        return Fabric()  # the fabric does not leave this machine
    uuid = f"{cluster[:8]}-{cluster[8:12]}-{cluster[12:16]}-{cluster[16:20]}-{cluster[20:]}"
    return Fabric(clique=f"{uuid}.{info.cliqueId}")
