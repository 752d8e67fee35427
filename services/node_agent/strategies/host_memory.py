"""Whether a pod's own memory limit has room for what it has on GPUs: a checkpoint puts it there, and beyond the limit the kernel
kills the pod for it. By the pod's cgroups (version 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from shared.model.units import MIB


class HostMemoryUnknown(Exception):
    """Nobody can tell; the text says why."""


def processes(pod: Path) -> dict[Path, tuple[int, ...]]:
    """PIDs by cgroup, the pod's own and all below it that have any. Raises Unseen."""
    found = {folder: _pids(folder) for folder in _folders(pod)}
    if any(0 in pids for pids in found.values()):
        raise HostMemoryUnknown("the agent does not see the host's processes: it needs hostPID")
    return {folder: pids for folder, pids in found.items() if pids}


def refusal(pod: Path, need: Mapping[Path, int], total_bytes: int, meminfo: Path = Path("/proc/meminfo")) -> str:
    """Why so much cannot go to the host; empty where it can. `need`: the most that may come into each cgroup with processes on
    GPUs. What the kernel would give back first (page cache) counts as taken. Raises Unseen."""
    for folder, most_bytes in {pod: total_bytes, **need}.items():
        room = _room(folder)
        if room is not None and room < most_bytes:
            return f"its memory limit has room for {room // MIB} MiB, and it has {-(-most_bytes // MIB)} MiB on GPUs"
    available = _available(meminfo)
    if available < total_bytes:
        return f"the node has {available // MIB} MiB of memory left, and it has {-(-total_bytes // MIB)} MiB on GPUs"
    return ""


def _folders(pod: Path) -> Iterator[Path]:
    yield pod
    yield from (path for path in sorted(pod.rglob("*")) if path.is_dir())


def _pids(folder: Path) -> tuple[int, ...]:
    try:
        return tuple(int(line) for line in (folder / "cgroup.procs").read_text().split())
    except FileNotFoundError:
        return ()  # it went while we looked
    except OSError as error:
        raise HostMemoryUnknown(f"{folder}/cgroup.procs: {error.strerror}") from error


def _room(folder: Path) -> int | None:
    """Bytes; None: no limit."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        return None if limit == "max" else int(limit) - int((folder / "memory.current").read_text())
    except (OSError, ValueError) as error:
        raise HostMemoryUnknown(
            f"nobody can tell what memory {folder.name} has left (cgroups of version 1 do not say it here): {error}"
        ) from error


def _available(meminfo: Path) -> int:
    try:
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, StopIteration) as error:
        raise HostMemoryUnknown(f"{meminfo} does not say what memory is left") from error
