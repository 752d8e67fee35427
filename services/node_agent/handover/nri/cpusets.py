"""What a pod's containers may use at all, by the pod's cgroup: outside of it nothing may be given to them."""

from __future__ import annotations

import re
from pathlib import Path

from services.node_agent.handover.nri.affinity import Allowed, Numbers, numbers

_TOTAL = re.compile(r"MemTotal:\s+([0-9]+) kB")


class PodCpusets:
    def __init__(self, cgroup_dir: Path, sysfs: Path, *, sizes: bool) -> None:
        """`sizes`: whether those of memory nodes are asked for."""
        self._nodes = sysfs / "devices/system/node"
        self._root, self._sized = cgroup_dir, sizes
        self._v2 = (cgroup_dir / "cgroup.controllers").exists()

    def allowed(self, parent: str) -> Allowed | None:
        """Of the pod whose containers' cgroups are below `parent`, as the runtime names it. None where nobody knows: the
        runtime must not be told to set what the kernel may refuse."""
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
                continue  # a node whose size is not known has none: nothing is bound to it
            if total is not None:
                found[node] = 1024 * int(total[1])
        return found


def _path(parent: str) -> str:
    """cgroupfs names the path; systemd the slice, which stands within those that its name begins with."""
    name = parent.rsplit("/", 1)[-1]
    if not name.endswith(".slice"):
        return parent.lstrip("/")
    parts = name.removesuffix(".slice").split("-")
    return "/".join("-".join(parts[: count + 1]) + ".slice" for count in range(len(parts)))
