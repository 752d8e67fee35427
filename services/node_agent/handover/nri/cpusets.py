"""Reads the CPUs and memory nodes that a pod's containers may use from the pod's cgroup; no others may be given to
them."""

from __future__ import annotations

import re
from pathlib import Path

from services.node_agent.handover.nri.affinity import Allowed, Numbers, numbers

_TOTAL = re.compile(r"MemTotal:\s+([0-9]+) kB")


class PodCpusets:
    def __init__(self, cgroup_dir: Path, sysfs: Path, *, sizes: bool) -> None:
        """`sizes`: whether the sizes of memory nodes are read, too."""
        self._nodes = sysfs / "devices/system/node"
        self._root, self._sized = cgroup_dir, sizes
        self._v2 = (cgroup_dir / "cgroup.controllers").exists()

    def allowed(self, parent: str) -> Allowed | None:
        """What the pod may use whose containers' cgroups are below `parent`, as the runtime names it.

        None if that is unknown: the runtime must not be told to set what the kernel may refuse.
        """
        suffix = ".effective" if self._v2 else ""
        hierarchy = self._root if self._v2 else self._v1()
        if hierarchy is None or not parent:
            return None
        group = hierarchy / _path(parent)
        try:
            cpus, mems = (numbers((group / f"cpuset.{what}{suffix}").read_text()) for what in ("cpus", "mems"))
        except (OSError, ValueError):
            return None
        return Allowed(cpus=cpus, mems=mems, node_bytes=self._sizes(mems) if self._sized else {}) if cpus else None

    def _v1(self) -> Path | None:
        hierarchies = self._root.iterdir() if self._root.is_dir() else ()
        return next((folder for folder in hierarchies if "cpuset" in folder.name.split(",")), None)

    def _sizes(self, nodes: Numbers) -> dict[int, int]:
        found = {}
        for node in nodes:
            try:
                total = _TOTAL.search((self._nodes / f"node{node}/meminfo").read_text())
            except OSError:
                continue  # a node of unknown size has none: nothing is bound to it
            if total is not None:
                found[node] = 1024 * int(total[1])
        return found


def _path(parent: str) -> str:
    """The path of a cgroup parent. cgroupfs names the path; systemd names a slice, which is inside the slices that its
    name begins with."""
    name = parent.rsplit("/", 1)[-1]
    if not name.endswith(".slice"):
        return parent.lstrip("/")
    parts = name.removesuffix(".slice").split("-")
    return "/".join("-".join(parts[: count + 1]) + ".slice" for count in range(len(parts)))
