"""A cgroup of the agent's own for processes that outlive it: what is in the agent's cgroup ends with its container."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

LOOK_S = 0.02
JOIN = 'for at in $1; do echo $$ >"$at/cgroup.procs"; done 2>/dev/null'
"""Shell: moves the shell into the cgroups of its first argument, before it starts anything."""


class OwnCgroup:
    """One group of processes, in each hierarchy of cgroups that takes it (one with version 2)."""

    def __init__(self, root: Path, name: str) -> None:
        """`root`: where the host's cgroup file systems are mounted. `name`: its path below, as `kerf-remote/proxy`."""
        self._root, self._name = root, name

    def make(self) -> str:
        """Creates it, and returns its folders as one argument for JOIN. Raises OSError if no hierarchy takes it."""
        made = []
        errors: list[OSError] = []
        for hierarchy in self._hierarchies():
            folder = hierarchy / self._name
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                errors.append(error)  # such as cpuset of version 1, whose new cgroups have no CPUs
                continue
            made.append(str(folder))
        if not made:
            raise errors[0] if errors else FileNotFoundError(f"no cgroups are mounted at {self._root}")
        return " ".join(made)

    def take(self, pid: int) -> bool:
        """Moves a running process into it, in each hierarchy that takes it. Returns whether any has."""
        taken = False
        for hierarchy in self._hierarchies():
            folder = hierarchy / self._name
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "cgroup.procs").write_text(str(pid))
            except OSError:
                continue  # such as cpuset of version 1, whose new cgroups have no CPUs
            taken = True
        return taken

    def limit(self, memory_bytes: int, pids: int) -> None:
        """Limits the host memory and the number of tasks of all that runs in it. Raises OSError if that cannot be
        done."""
        if (self._root / "cgroup.procs").exists():
            above = [self._root, *reversed([self._root / at for at in Path(self._name).parents if at.name])]
            for folder in above:
                (folder / "cgroup.subtree_control").write_text("+memory +pids")
            own = self._root / self._name
            (own / "memory.max").write_text(str(memory_bytes))
            (own / "memory.swap.max").write_text("0")
            (own / "pids.max").write_text(str(pids))
            return
        (self._root / "memory" / self._name / "memory.limit_in_bytes").write_text(str(memory_bytes))
        (self._root / "pids" / self._name / "pids.max").write_text(str(pids))

    def pids(self) -> frozenset[int]:
        """The processes in it now."""
        found: set[int] = set()
        for hierarchy in self._hierarchies():
            with contextlib.suppress(OSError):  # it has none there, or has lost it meanwhile
                found.update(map(int, (hierarchy / self._name / "cgroup.procs").read_text().split()))
        return frozenset(found)

    async def end(self, within_s: float) -> None:
        """Ends all processes in it at once (SIGKILL) and removes it. Raises OSError if some of them stay."""
        deadline = asyncio.get_running_loop().time() + within_s
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if asyncio.get_running_loop().time() > deadline:
                raise OSError(f"processes {sorted(pids)} have not ended within {within_s:g} s")
            await asyncio.sleep(LOOK_S)
        for hierarchy in self._hierarchies():
            for at in (Path(self._name), *Path(self._name).parents):
                # It has none there, or something else is in it; its parents may have others.
                with contextlib.suppress(OSError):
                    if at.name:
                        (hierarchy / at).rmdir()

    def _hierarchies(self) -> list[Path]:
        if (self._root / "cgroup.procs").exists():
            return [self._root]
        try:
            return sorted(entry for entry in self._root.iterdir() if (entry / "cgroup.procs").exists())
        except FileNotFoundError:
            return []
