"""Which of a pod's containers got past its slice. NVML knows processes, and their cgroups say the pod and the runtime's name of the
container, which no grant knows. But each container has its own page mounted, and through the process's root the agent sees which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from services.node_agent.devices.cgroups import Owner
from services.node_agent.devices.usage import GpuProcesses
from services.node_agent.strategies.escapes import PodMemory
from services.node_agent.strategies.interposer import CONTAINER_DIR
from services.node_agent.strategies.slices import Key

COUNTERS_PATH = f"{CONTAINER_DIR}/counters"
File = tuple[int, int]
"""Device and inode: the same however the file is mounted."""


def file_at(path: Path) -> File | None:
    """None where there is none, or it may not be seen."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def control_blocks_of(folders: Mapping[Key, Path]) -> dict[File, Key]:
    """The containers by their page. `folders`: where the agent has them."""
    return {file: key for key, folder in folders.items() if (file := file_at(folder / "counters")) is not None}


def container_of(pid: int, control_blocks: Mapping[File, Key], proc: Path) -> Key | None:
    """None for a process that shows no page of ours: it has ended, or another root directory."""
    file = file_at(proc / str(pid) / "root" / COUNTERS_PATH.lstrip("/"))
    return None if file is None else control_blocks.get(file)


def attribute_escape(
    containers: Iterable[Key],
    seen_mib: Mapping[int, int],
    counted_mib: Mapping[Key, int],
    of: Callable[[int], Key | None],
) -> dict[Key, frozenset[int]]:
    """Of one pod on one GPU: the containers that hold most beyond what their pages count, with their processes.

    `seen_mib` is NVML's word by process. A process that shows no page may be any container's, and counts for each. Who is beyond
    its page by less than half of the worst is not blamed: contexts are a little beyond it everywhere.
    """
    pids: dict[Key, set[int]] = {key: set() for key in containers}
    for pid in seen_mib:
        found = of(pid)
        for key in (found,) if found in pids else tuple(pids):
            pids[key].add(pid)
    beyond = {key: sum(seen_mib[pid] for pid in mine) - counted_mib.get(key, 0) for key, mine in pids.items()}
    worst = max(beyond.values(), default=0)
    return {key: frozenset(pids[key]) for key in pids if beyond[key] * 2 >= worst}


def attribute_by_gpu(
    escaped: Iterable[PodMemory],
    found: Iterable[GpuProcesses],
    counted_mib: Mapping[tuple[Key, str], int],
    owner: Callable[[int], Owner | None],
    of: Callable[[int], Key | None],
) -> dict[str, dict[Key, frozenset[int]]]:
    """The same for all that escaped, by GPU. `owner` says of which pod a process is, `of` of which container with a page."""
    processes = {gpu.uuid: gpu.processes for gpu in found}
    attributed: dict[str, dict[Key, frozenset[int]]] = {}
    for held in escaped:
        mine = {
            p.pid: p.mib or 0
            for p in processes.get(held.uuid, ())
            if (whose := owner(p.pid)) is not None and whose.pod_uid == held.uid
        }
        counted = {key: mib for (key, uuid), mib in counted_mib.items() if uuid == held.uuid}
        attributed.setdefault(held.uuid, {}).update(attribute_escape(held.containers, mine, counted, of))
    return attributed
