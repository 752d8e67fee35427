"""Attributes the use of the GPUs to pods, by NVML's processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pynvml

from services.node_agent.nvml_calls import optional
from services.node_agent.processes.owner import Owner
from shared.contracts.node_commands import LiveSlice
from shared.contracts.samples import GpuUse, SliceUse, UsageSample
from shared.model.units import MIB

_NONE = 0xFFFFFFFF


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU. `mib` None: the driver does not report it.

    `sm_milli` None: no sample, as always in MIG mode.
    """

    pid: int
    mib: int | None
    sm_milli: int | None = None
    bandwidth_milli: int | None = None
    """The part of the time in which it read or wrote memory; None: no sample."""
    gpu_instance: int | None = None


class GpuProcesses(msgspec.Struct, frozen=True, kw_only=True):
    """The processes on one GPU.

    `sm_milli`: the share of time in which any kernel ran; None: unknown, as in MIG mode.
    """

    uuid: str
    used_mib: int
    sm_milli: int | None = None
    processes: tuple[Process, ...] = ()


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes of one pod use of a GPU."""

    pod_uid: str
    memory_mib: int
    sm_milli: int | None
    processes: int
    bandwidth_milli: int | None = None


def sample(
    node: str,
    at_ms: int,
    found: Iterable[GpuProcesses],
    live: Sequence[LiveSlice],
    owner: Callable[[int], Owner | None],
) -> UsageSample:
    """A sample of what is used and what was granted."""
    granted: dict[tuple[str, str], list[LiveSlice]] = {}
    for slice_ in live:
        for uuid in slice_.gpus:
            granted.setdefault((slice_.uid, uuid), []).append(slice_)
    pods = frozenset(slice_.uid for slice_ in live)
    gpus = []
    for gpu in found:
        used, foreign_mib = shares(gpu.processes, pods, owner)
        slices = []
        for share in used:
            mine = granted.get((share.pod_uid, gpu.uuid), [])
            if not mine:
                foreign_mib += share.memory_mib  # a pod that has a slice, but not of this GPU
                continue
            slices.append(_slice_use(share, gpu.uuid, mine))
        gpus.append(
            GpuUse(
                uuid=gpu.uuid,
                used_mib=gpu.used_mib,
                foreign_mib=foreign_mib,
                sm_milli=gpu.sm_milli,
                slices=tuple(slices),
            )
        )
    return UsageSample(node=node, at_ms=at_ms, gpus=tuple(gpus))


def _slice_use(share: Share, uuid: str, mine: list[LiveSlice]) -> SliceUse:
    first = mine[0]
    return SliceUse(
        uid=share.pod_uid,
        namespace=first.namespace,
        name=first.name,
        container=first.container if len(mine) == 1 else "",
        memory_mib=share.memory_mib,
        granted_memory_mib=sum(s.gpus[uuid][0] for s in mine),
        sm_milli=share.sm_milli,
        granted_compute_milli=sum(s.gpus[uuid][1] for s in mine),
        processes=share.processes,
        bandwidth_milli=share.bandwidth_milli,
    )


def read(handle: Any, uuid: str, since_us: int) -> GpuProcesses:
    """Reads the processes on one GPU. Raises pynvml.NVMLError.

    The SM use of each process is the mean of its samples newer than `since_us`, in microseconds since 1970.
    """
    rates = optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return GpuProcesses(
        uuid=uuid,
        used_mib=pynvml.nvmlDeviceGetMemoryInfo(handle).used // MIB,
        sm_milli=None if rates is None else rates.gpu * 10,
        processes=running(handle, _samples(handle, since_us)),
    )


def running(handle: Any, sampled: Mapping[int, tuple[int, int]] | None = None) -> tuple[Process, ...]:
    """The processes on a GPU, of compute and of graphics. `sampled`: use of SMs and of memory in thousandths by process
    id. Raises pynvml.NVMLError.

    NVML lists a process that does both in both lists, each time with all of its memory.
    """
    compute = _listed(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    graphics = _listed(optional(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or ())
    listed = compute | {
        key: used if compute.get(key) is None else max(used or 0, compute[key] or 0) for key, used in graphics.items()
    }
    return tuple(
        Process(
            pid=pid,
            mib=None if used is None else -(-used // MIB),
            sm_milli=(sampled or {}).get(pid, (None, None))[0],
            bandwidth_milli=(sampled or {}).get(pid, (None, None))[1],
            gpu_instance=None if instance == _NONE else instance,
        )
        for (pid, instance), used in listed.items()
    )


def _listed(found: Iterable[Any]) -> dict[tuple[int, int], int | None]:
    """One of NVML's lists: bytes by process id and MIG instance; None if the driver does not report them."""
    listed: dict[tuple[int, int], int | None] = {}
    for one in found:
        key, used = (one.pid, one.gpuInstanceId), one.usedGpuMemory
        listed[key] = used if listed.get(key) is None else (listed[key] or 0) + (used or 0)
    return listed


def _samples(handle: Any, since_us: int) -> dict[int, tuple[int, int]]:
    """Use of the SMs and of the memory in thousandths, by process id. Under MPS all of it is the MPS server's."""
    try:
        found = optional(pynvml.nvmlDeviceGetProcessUtilization, handle, since_us) or ()
    except pynvml.NVMLError_NotFound:
        return {}  # no process has run since
    by_pid: dict[int, list[tuple[int, int]]] = {}
    for sample in found:
        if sample.timeStamp > since_us:  # the driver's buffer also holds older samples
            by_pid.setdefault(sample.pid, []).append((sample.smUtil, sample.memUtil))
    return {
        pid: (10 * sum(sm for sm, _ in values) // len(values), 10 * sum(mem for _, mem in values) // len(values))
        for pid, values in by_pid.items()
    }


def shares(
    processes: Iterable[Process], pods: frozenset[str], owner: Callable[[int], Owner | None]
) -> tuple[tuple[Share, ...], int]:
    """The use by each pod that has a slice, and the MiB of all other processes.

    A process whose owner cannot be determined counts as neither: to count it as foreign would count slices twice if the
    agent does not see the host's processes.
    """
    ours: dict[str, list[Process]] = {}
    foreign_mib = 0
    for process in processes:
        of = owner(process.pid)
        if of is None:
            continue
        if of.pod_uid in pods:
            ours.setdefault(of.pod_uid, []).append(process)
        else:
            foreign_mib += process.mib or 0
    found = []
    for uid, mine in sorted(ours.items()):
        used = [process.sm_milli for process in mine if process.sm_milli is not None]
        moved = [process.bandwidth_milli for process in mine if process.bandwidth_milli is not None]
        memory_mib = sum(process.mib or 0 for process in mine)
        found.append(
            Share(
                pod_uid=uid,
                memory_mib=memory_mib,
                sm_milli=sum(used) if used else None,
                processes=len(mine),
                bandwidth_milli=sum(moved) if moved else None,
            )
        )
    return tuple(found), foreign_mib
