"""Cgroups of the kernel that stand for pods: version 2, and version 1's controller freezer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.kubelet_agent import uid

_ROOTS = {
    "v2": (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")),
    "v1": (Path("/sys/fs/cgroup/freezer"),),
}
_FILES = {"v2": "cgroup.controllers", "v1": "freezer.state"}
VERSIONS = tuple(_ROOTS)


class PodTree:
    """A cgroup with those of pods below it. The agent takes it for the root of all."""

    def __init__(self, root: Path, version: str) -> None:
        self.root = root
        self._file = "cgroup.freeze" if version == "v2" else "freezer.state"
        self._frozen, self._thawed = ("1", "0") if version == "v2" else ("FROZEN", "THAWED")

    def add(self, name: str, pid: int) -> None:
        """Moves a process into the container `main` of a pod."""
        folder = self._pod(name) / "main"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text(str(pid))

    def freeze(self, name: str) -> None:
        (self._pod(name) / self._file).write_text(self._frozen)

    def thaw(self, name: str) -> None:
        """A process of cgroup v1 that was killed while frozen ends only then."""
        (self._pod(name) / self._file).write_text(self._thawed)

    def is_frozen(self, name: str) -> bool:
        """Whether a freeze was asked for."""
        return (self._pod(name) / self._file).read_text().strip() in ("1", "FROZEN", "FREEZING")

    def _pod(self, name: str) -> Path:
        return self.root / "kubepods" / f"pod{uid(name)}"


@contextlib.contextmanager
def pod_tree(version: str) -> Iterator[PodTree]:
    """An empty tree. Skips where the kernel or the user cannot have one. The processes must have ended at the end."""
    root = next((root for root in _ROOTS[version] if (root / "cgroup.procs").exists()), None)
    if root is None or os.geteuid() != 0:
        pytest.skip(f"needs root and a cgroup tree of {version}, so freezing by it is NOT TESTED on this machine")
    folder = root / f"kerf-test-{uuid4().hex[:8]}"
    folder.mkdir()
    try:
        if not (folder / _FILES[version]).exists():
            pytest.skip(f"{root} is no cgroup tree of {version}, so freezing by it is NOT TESTED on this machine")
        yield PodTree(folder, version)
    finally:
        for path, _, _ in os.walk(folder, topdown=False):
            Path(path).rmdir()
