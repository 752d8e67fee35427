"""A cgroup for the whole sandbox in every hierarchy: it sees it as the root, and it is removed with all below."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

_GONE_WITHIN_S = 10.0


@dataclasses.dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup hierarchy, and where in it this process stands."""

    mount: Path
    options: str
    """What mounts it again: "cpu,cpuacct", "name=systemd"; empty for version 2."""
    here: Path

    @property
    def version(self) -> int:
        return 1 if self.options else 2


def hierarchies() -> list[Hierarchy]:
    """All of version 1 where the memory controller is there, else the one of version 2."""
    paths = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths[controllers] = path
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        root, mount = fields.split()[3:5]
        kind, _, flags = rest.split()[:3]
        if kind == "cgroup":
            options = ",".join(flag for flag in flags.split(",") if flag not in ("rw", "ro", "xattr", "clone_children"))
            path = next((p for c, p in paths.items() if set(c.split(",")) == set(options.split(","))), "/")
            found.append(Hierarchy(Path(mount), options, _below(Path(mount), root, path)))
        elif kind == "cgroup2":
            # Below its root, for a group that has processes may have no groups with controllers.
            found.append(Hierarchy(Path(mount), "", Path(mount)))
    first = [h for h in found if h.version == 1]
    return first if any("memory" in h.options.split(",") for h in first) else [h for h in found if h.version == 2][:1]


def _below(mount: Path, root: str, path: str) -> Path:
    inside = path.removeprefix(root).lstrip("/") if path.startswith(root) else ""
    return mount / inside if (mount / inside).is_dir() else mount


def make(name: str) -> list[Path]:
    """The group in every hierarchy. Raises OSError where this machine does not allow it."""
    made = []
    for hierarchy in hierarchies():
        group = hierarchy.here / name
        group.mkdir()
        made.append(group)
        if "cpuset" in hierarchy.options.split(","):
            for knob in ("cpuset.cpus", "cpuset.mems"):  # empty at first, and nothing may enter before
                (group / knob).write_text((hierarchy.here / knob).read_text())
    return made


def enter(groups: list[Path]) -> None:
    """Moves the calling process."""
    for group in groups:
        (group / "cgroup.procs").write_text("0")


def remove(groups: list[Path]) -> None:
    """All that is below, too. Raises OSError where something in it still runs after ten seconds."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    for group in groups:
        for folder, _, _ in os.walk(group, topdown=False):
            while True:
                try:
                    os.rmdir(folder)
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)  # the kernel ends processes in its own time
