"""Whether this machine can hold a sandbox at all."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tools.sandbox import cgroups

UNSHARE = ("unshare", "--mount", "--pid", "--cgroup", "--fork", "--kill-child", "--mount-proc")


def why_not(*, default_route: bool = True) -> str:
    """A sentence why a kubelet cannot be run here; empty where it can. `default_route`: whether one must be there."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    missing = [tool for tool in ("unshare", "mount") if shutil.which(tool) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} on PATH"
    tried = subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "none", "/run"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        return f"no namespaces with mounts of their own may be made: {tried.stderr.strip()}"
    if default_route and not any(
        line.split()[1] == "00000000" for line in Path("/proc/net/route").read_text().splitlines()[1:]
    ):
        return "there is no default route, and a kubelet takes its address from it"
    return _no_cgroups()


def _no_cgroups() -> str:
    found = cgroups.hierarchies()
    if not found:
        return "no cgroups are mounted"
    if found[0].version == 2:
        controllers = (found[0].here / "cgroup.subtree_control").read_text().split()
        missing = {"cpu", "cpuset", "memory", "pids"} - set(controllers)
        if missing:
            return f"groups below {found[0].here} have no {', '.join(sorted(missing))} (cgroup.subtree_control)"
    groups: list[Path] = []
    try:
        groups = cgroups.make(f"kerf-try-{os.getpid()}")
    except OSError as error:
        return f"no cgroup may be made: {error}"
    finally:
        cgroups.remove(groups)
    return ""
