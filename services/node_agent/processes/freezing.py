"""Freezes all processes of a pod by its cgroup, and thaws them: cgroup v2's `cgroup.freeze`, v1's controller freezer.

A frozen process neither computes nor allocates. Nothing but a thaw or SIGKILL changes that, and with cgroup v1 SIGKILL
has its effect only after the thaw.
"""

from __future__ import annotations

from pathlib import Path

from services.node_agent.processes.pod_cgroups import GONE, PodCgroups

_V2, _V1 = "cgroup.freeze", "freezer.state"
_FREEZE, _THAW = {_V2: "1", _V1: "FROZEN"}, {_V2: "0", _V1: "THAWED"}


class Freezer:
    def __init__(self, cgroups: PodCgroups) -> None:
        self._cgroups = cgroups

    def freeze(self, uid: str) -> bool:
        """Begins to freeze a pod. Returns False if it has no cgroup that can be frozen. Raises OSError.

        The kernel stops each process at its next return from a system call, which a call into a driver may delay.
        """
        files = self._files().get(uid, ())
        for file in files:
            file.write_text(_FREEZE[file.name])
        return bool(files)

    def thaw(self, uid: str) -> None:
        """Thaws a pod. Does nothing if the pod is gone or is not frozen. Raises OSError."""
        for file in self._files().get(uid, ()):
            _thaw(file)

    def thaw_all(self) -> tuple[tuple[str, ...], dict[str, OSError]]:
        """Thaws all pods that are frozen. Returns their UIDs, and those that could not be thawed with their errors.

        An agent that was killed may have left them so. Kubernetes itself freezes containers, and never a pod.
        """
        thawed: list[str] = []
        failed: dict[str, OSError] = {}
        for uid, files in sorted(self._files().items()):
            try:
                if any(_is_frozen(file) for file in files):
                    self.thaw(uid)
                    thawed.append(uid)
            except OSError as error:
                failed[uid] = error
        return tuple(thawed), failed

    def _files(self) -> dict[str, list[Path]]:
        """The files by which each pod is frozen.

        With cgroup v1 they are in one hierarchy of several. Where v2 is mounted beside it, the pod may have a cgroup in
        both, and only one of them has its processes.
        """
        found: dict[str, list[Path]] = {}
        for uid, folder in self._cgroups.folders():
            for name in (_V2, _V1):
                if (folder / name).exists():
                    found.setdefault(uid, []).append(folder / name)
        return found


def _is_frozen(file: Path) -> bool:
    try:
        return file.read_text().strip() in ("1", "FROZEN", "FREEZING")
    except OSError as error:
        if error.errno in GONE:
            return False
        raise


def _thaw(file: Path) -> None:
    try:
        file.write_text(_THAW[file.name])
    except OSError as error:
        if error.errno not in GONE:
            raise
