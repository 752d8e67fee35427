"""Finds the containers of a pod that bypass their slices.

NVML reports processes. A process's cgroup gives the pod and the runtime's container ID, but a grant names containers by
their names in the pod. Each container has its own control block mounted, and the agent can see through the process's
root directory (`/proc/PID/root`) which one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from services.node_agent.devices.usage import GpuProcesses
from services.node_agent.processes.container_files import File, file_in
from services.node_agent.processes.owner import Owner
from services.node_agent.strategies.escapes import PodMemory
from services.node_agent.strategies.interposer import CONTAINER_DIR
from services.node_agent.strategies.slices import Key

COUNTERS_PATH = f"{CONTAINER_DIR}/counters"


def control_blocks_of(folders: Mapping[Key, Path]) -> dict[File, Key]:
    """Returns the containers by their counters file. `folders`: the folders of the control blocks on the host."""
    return {file: key for key, folder in folders.items() if (file := file_in(folder, "counters")) is not None}


def container_of(pid: int, control_blocks: Mapping[File, Key], proc: Path) -> Key | None:
    """Returns the container of a process, or None if no control block is visible in its root directory.

    That happens if the process has ended, or has another root directory.
    """
    file = file_in(proc / str(pid) / "root", COUNTERS_PATH)
    return None if file is None else control_blocks.get(file)


def attribute_escape(
    containers: Iterable[Key],
    seen_mib: Mapping[int, int],
    counted_mib: Mapping[Key, int],
    of: Callable[[int], Key | None],
) -> dict[Key, frozenset[int]]:
    """Returns the containers of one pod that hold the most uncounted memory on one GPU, each with its processes.

    `seen_mib` is the memory by process as NVML reports it. A process without a visible control block may belong to any
    container, and counts for each of them. A container is not attributed if its uncounted memory is less than half of
    the maximum, because contexts always take a little more than is counted.
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
    """Applies `attribute_escape` to all escapes. Returns the containers and their processes by GPU.

    `owner` returns the pod of a process, `of` its container if that has a control block.
    """
    processes = {gpu.uuid: gpu.processes for gpu in found}
    attributed: dict[str, dict[Key, frozenset[int]]] = {}
    for held in escaped:
        mine = {
            p.pid: p.mib or 0
            for p in processes.get(held.uuid, ())
            if (pod := owner(p.pid)) is not None and pod.pod_uid == held.uid
        }
        counted = {key: mib for (key, uuid), mib in counted_mib.items() if uuid == held.uuid}
        attributed.setdefault(held.uuid, {}).update(attribute_escape(held.containers, mine, counted, of))
    return attributed
