"""Runs a program as a container with CDI edits would: `python inside.py FILE COMMAND...`, as root.

FILE is JSON: `edits` as in a CDI spec, `root` an empty folder, and `shared`, folders that the container has in common
with the host. The container's root is this machine's, with a layer of its own above it, so that the edits' mounts can
be created anywhere and nothing of them stays. Its /dev has the usual nodes and the edits' device nodes, and nothing
else of the host's. Hooks are not run: those of the driver's edits update links and the linker's cache, and this
machine's are those of its driver.

It uses the standard library alone, and no tool, and works as a script in any Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from pathlib import Path

NEWNS = 0x20000
FLAGS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8}
REMOUNT, BIND, REC, PRIVATE = 32, 4096, 16384, 1 << 18
USUAL_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    if LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()):
        error = ctypes.get_errno()
        raise OSError(error, f"mount of {source} as {kind or 'bind'} failed: {os.strerror(error)}", target)


def bind(source: str, target: str, options: list[str]) -> None:
    """As the runtime does it: the target is created where it is missing, and the options need a second mount."""
    if Path(source).is_dir():
        Path(target).mkdir(parents=True, exist_ok=True)
    elif not os.path.lexists(target):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()
    mount(source, target, "", BIND | (REC if "rbind" in options else 0))
    flags = sum(FLAGS[option] for option in options if option in FLAGS)
    if flags:
        mount("", target, "", BIND | REMOUNT | flags)


def build_root(folder: str, shared: list[str]) -> str:
    """Returns the container's root: a layer above this machine's root, with its other file systems."""
    if LIBC.unshare(NEWNS):
        error = ctypes.get_errno()
        raise OSError(error, f"unshare of the mount namespace failed: {os.strerror(error)}")
    mount("", "/", "", REC | PRIVATE)
    others = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    mount("tmpfs", folder, "tmpfs", 0)
    for name in ("upper", "work", "root"):
        (Path(folder) / name).mkdir()
    root = f"{folder}/root"
    mount("overlay", root, "overlay", 0, f"lowerdir=/,upperdir={folder}/upper,workdir={folder}/work")
    for place in sorted(set(others)):
        if place != "/" and not place.startswith("/dev") and Path(root + place).exists():
            mount(place, root + place, "", BIND)
    for place in shared:
        bind(place, root + place, ["rbind"])
    mount("tmpfs", f"{root}/dev", "tmpfs", 0)
    for name in USUAL_DEVICES:
        if Path(f"/dev/{name}").exists():
            bind(f"/dev/{name}", f"{root}/dev/{name}", [])
    (Path(root) / "dev" / "shm").mkdir()
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", 0)
    return root


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    edits, here = asked["edits"], str(Path.cwd())
    root = build_root(asked["root"], asked["shared"])
    for node in edits.get("deviceNodes", ()):
        bind(node.get("hostPath") or node["path"], root + node["path"], [])
    for one in edits.get("mounts", ()):
        bind(one["hostPath"], root + one["containerPath"], one.get("options", []))
    os.chroot(root)
    os.chdir("/")
    with contextlib.suppress(FileNotFoundError):
        os.chdir(here)
    environment = os.environ | dict(line.split("=", 1) for line in edits.get("env", ()))
    os.execvpe(sys.argv[2], sys.argv[2:], environment)


if __name__ == "__main__":
    main()
