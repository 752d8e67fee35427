"""Finds the cgroups of pods: cgroup v1 and v2, drivers cgroupfs and systemd, any cgroup root.

cgroupfs: .../kubepods/burstable/pod<uid>; systemd: .../kubepods-burstable.slice/kubepods-burstable-pod<uid with
_>.slice (pkg/kubelet/cm/cgroup_manager_linux.go).
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from services.node_agent.processes.owner import owner_in

_ELSEWHERE = frozenset({"system.slice", "user.slice", "init.scope"})
_DEPTH = 5
_KUBEPODS = "kubepods"
GONE = (errno.ENOENT, errno.ENODEV)
"""The cgroup was removed meanwhile: before its file was opened, or after that."""


class PodCgroups:
    def __init__(self, root: Path) -> None:
        """`root`: where the host's cgroup file systems are mounted, usually /sys/fs/cgroup."""
        self._root = root
        self._paths: dict[str, Path] = {}

    def present(self, uids: Iterable[str]) -> frozenset[str]:
        """The pods that have a cgroup in any hierarchy. If all had one before, it costs one stat per pod."""
        wanted = frozenset(uids)
        if not all((known := self._paths.get(uid)) is not None and known.exists() for uid in wanted):
            self._paths = self._walk()
        return wanted & self._paths.keys()

    def path(self, uid: str) -> Path | None:
        """The pod's cgroup, or None. With cgroup v1 it is in any one of the hierarchies."""
        return self._paths[uid] if self.present((uid,)) else None

    def folders(self) -> Iterator[tuple[str, Path]]:
        """All pods' cgroups, each with the pod's UID: with cgroup v1 one in each hierarchy. Reads all directories."""
        for root in self._hierarchies():
            for entry, uid in _below(root):
                if uid:
                    yield uid, Path(entry.path)

    def populated(self) -> frozenset[str]:
        """The pods with a process in any of their cgroups. Reads all directories."""
        return frozenset(uid for uid, folder in self.folders() if _is_populated(folder))

    def root_v2(self) -> Path | None:
        """The root of the cgroups of version 2, if the pods' are among them: v2 may be mounted beside hierarchies of v1
        that have the pods."""
        roots = (root for root in self._hierarchies() if (root / "cgroup.controllers").exists())
        return next((root for root in roots if _has_pods(root)), None)

    def has_pod_cgroups(self) -> bool:
        """Whether this kubelet creates a cgroup per pod at all (cgroupsPerQOS)."""
        return any(map(_has_pods, self._hierarchies()))

    def _walk(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for uid, folder in self.folders():
            found.setdefault(uid, folder)
        return found

    def _hierarchies(self) -> list[Path]:
        """The mounted hierarchies: with cgroup v1 one per controller, with v2 a single one."""
        if (self._root / "cgroup.procs").exists():
            return [self._root]
        return [Path(entry.path) for entry in _subdirectories(self._root)]


def _is_populated(folder: Path) -> bool:
    """Whether a process is in this cgroup or below it."""
    if events := _read(folder / "cgroup.events"):
        return "populated 1" in events
    return any(_read(Path(at) / "cgroup.procs") for at, _, _ in os.walk(folder))  # version 1 has no events


def _read(file: Path) -> str:
    """Returns nothing of a file that a cgroup does not have, or that is gone with its cgroup."""
    try:
        return file.read_text()
    except OSError as error:
        if error.errno in GONE:
            return ""
        raise


def _has_pods(root: Path) -> bool:
    return any(_KUBEPODS in entry.name for entry, _ in _below(root))


def _below(root: Path, depth: float = _DEPTH) -> Iterator[tuple[os.DirEntry[str], str]]:
    """The directories below `root`, except those inside a pod's; each with the pod's UID, or "".

    `depth`: how many levels are read. Below the kubelet's own directory it is all of them: a pod that is not found
    where pods have cgroups counts as ended.
    """
    for entry in _subdirectories(root):
        if entry.name in _ELSEWHERE:
            continue
        uid = owner_in(entry.name).pod_uid
        yield entry, uid
        left = math.inf if _KUBEPODS in entry.name else depth - 1
        if not uid and left > 0:
            yield from _below(Path(entry.path), left)


def _subdirectories(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []  # it was removed meanwhile
