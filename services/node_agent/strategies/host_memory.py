"""Host memory for the GPU memory of suspended pods: what the node offers, and whether a pod's own limit has room.

A checkpoint moves GPU memory to host memory of the pod. If that exceeds the pod's limit (cgroups of version 2), the
kernel kills the pod. Swap of the node counts as far as the pod may use it (`memory.swap.max`): what has been moved is
not touched until the pod resumes, so the kernel writes it there when memory runs short. The kubelet gives containers
none, or with `LimitedSwap` a part by their memory request (kubernetes/website, swap-memory-management.md).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import structlog

from services.node_agent.processes.pod_cgroups import GONE
from shared.model.units import MIB

log = structlog.get_logger("host_memory")


class HostMemoryUnknown(Exception):
    """The pod's processes or its memory cannot be determined. The text says why."""


def processes(pod: Path) -> dict[Path, tuple[int, ...]]:
    """Returns the PIDs of the pod's cgroup and those below it, by cgroup; empty ones omitted. Raises
    HostMemoryUnknown."""
    found = {folder: _pids(folder) for folder in _folders(pod)}
    if any(0 in pids for pids in found.values()):
        raise HostMemoryUnknown("the agent cannot see the host's processes: it needs hostPID")
    return {folder: pids for folder, pids in found.items() if pids}


def refusal(
    pod: Path, need: Mapping[Path, int], total_bytes: int, meminfo: Path = Path("/proc/meminfo"), others_bytes: int = 0
) -> str:
    """Returns why the GPU memory does not fit on the host; empty if it fits.

    `need`: the maximum bytes that may be added to each cgroup with processes on GPUs. `total_bytes`: their sum for the
    pod. `others_bytes`: what other pods take of the node at this moment. Reclaimable memory (page cache) counts as used
    by the pod. Raises HostMemoryUnknown.
    """
    most = {pod: total_bytes}
    for folder, max_bytes in need.items():
        for level in _levels(folder, pod):
            most[level] = max(max_bytes, most.get(level, 0))
    for folder, max_bytes in most.items():
        room = _room(folder)
        if room is not None and room < max_bytes:
            return f"its memory limit has room for {room // MIB} MiB, but it has {-(-max_bytes // MIB)} MiB on GPUs"
    available = max(0, _line(meminfo, "MemAvailable") - others_bytes)
    if available < total_bytes:
        swap = _swap(pod, need, meminfo)
        if available + swap < total_bytes:
            more = f" and {swap // MIB} MiB of swap for it" if swap else ""
            has = f"the pod has {-(-total_bytes // MIB)} MiB on GPUs"
            return f"the node has {available // MIB} MiB of memory left{more}, but {has}"
    return ""


def park_mib(setting: int | None, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Returns how much GPU memory of suspended pods the host takes: as set, at most what the host has, with its swap;
    not set: half of its memory. Raises HostMemoryUnknown."""
    total_mib = _line(meminfo, "MemTotal") // MIB
    return total_mib // 2 if setting is None else min(setting, total_mib + _line(meminfo, "SwapTotal") // MIB)


def offered_mib(setting: int | None) -> int:
    """As `park_mib`; 0, with a line in the log, if it is not known."""
    try:
        return park_mib(setting)
    except HostMemoryUnknown as error:
        log.error("host_memory_not_known", error=str(error), effect="no pod is moved to this host")
        return 0


def _folders(pod: Path) -> Iterator[Path]:
    """The pod's cgroup and those below it, without those that are removed meanwhile. Raises HostMemoryUnknown."""

    def failed(error: OSError) -> None:
        if error.errno not in GONE:
            raise HostMemoryUnknown(f"{error.filename}: {error.strerror}") from error

    for folder, below, _ in os.walk(pod, onerror=failed):
        below.sort()
        yield Path(folder)


def _levels(folder: Path, pod: Path) -> list[Path]:
    """Returns a cgroup of a container and those above it, up to the container's own: one that has processes may be made
    by a program in the container, and its limits are those of all of them."""
    return [folder, *folder.parents][: max(0, len(folder.parts) - len(pod.parts))]


def _pids(folder: Path) -> tuple[int, ...]:
    try:
        return tuple(int(line) for line in (folder / "cgroup.procs").read_text().split())
    except OSError as error:
        if error.errno in (*GONE, errno.EOPNOTSUPP):
            return ()  # a threaded cgroup: its processes are listed by the cgroup that has it
        raise HostMemoryUnknown(f"{folder}/cgroup.procs: {error.strerror}") from error


def _room(folder: Path) -> int | None:
    """Returns the bytes left below the cgroup's memory limit, or None if it has no limit."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        return None if limit == "max" else int(limit) - int((folder / "memory.current").read_text())
    except (OSError, ValueError) as error:
        raise HostMemoryUnknown(
            f"the memory that {folder.name} has left is unknown (cgroups of version 1 are not supported here): {error}"
        ) from error


def _swap(pod: Path, need: Mapping[Path, int], meminfo: Path) -> int:
    """Returns the bytes of free swap that the pod may use: no more than its containers with processes on GPUs may."""
    free = _line(meminfo, "SwapFree")
    by_container: dict[Path, int] = {}
    for folder in need:
        levels = _levels(folder, pod) or [pod]
        room = min(_swap_room(level, free) for level in levels)
        by_container[levels[-1]] = by_container.get(levels[-1], 0) + room
    inside = sum(min(room, _swap_room(container, free)) for container, room in by_container.items())
    return max(0, min(free, _swap_room(pod, free), inside))


def _swap_room(folder: Path, most: int) -> int:
    """Returns the bytes of swap left below the cgroup's limit, at most this many; 0 where the kernel counts no swap."""
    limit, current = folder / "memory.swap.max", folder / "memory.swap.current"
    try:
        text = limit.read_text().strip()
        return most if text == "max" else min(most, int(text) - int(current.read_text()))
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise HostMemoryUnknown(f"the swap that {folder.name} has left is unknown: {error}") from error


def _line(meminfo: Path, name: str) -> int:
    """Returns the bytes that a line of /proc/meminfo names. Raises HostMemoryUnknown."""
    try:
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, StopIteration) as error:
        raise HostMemoryUnknown(f"{meminfo} does not contain {name}") from error
