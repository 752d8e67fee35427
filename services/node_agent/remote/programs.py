"""The programs of native/remote as this node has them, and how they are started so that they outlive the agent."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from services.node_agent import log_files
from services.node_agent.cdi.spec import Mount
from services.node_agent.processes.own_cgroup import JOIN, OwnCgroup
from services.node_agent.remote.slices import slice_secret
from services.node_agent.strategies import selinux
from services.node_agent.strategies.install import renew

SERVER, PROXY, CLIENT = "server", "proxy", "libcuda.so.1"
PRELOAD = "ld.so.preload"
CONTAINER_LIBRARY = "/run/kerf/libkerf-remote.so"
LOG, SECRET = "log", "secret"
TAIL_BYTES = 400
LOOK_S = 0.02
_SERVE = f'{JOIN}; shift; cd "$1" && shift && exec "$@" </dev/null >>{LOG} 2>&1'
"""Shell: the cgroups, the folder, the command."""
_MOUNTED = """
target=$1; shift
hidden=$1; shift
host=$1; shift
driver=$1; shift
count=$1; shift
stage=$(mktemp -d) || exit 1
trap 'umount -l "$stage" 2>/dev/null; rmdir "$stage"' EXIT
mount -t tmpfs -o size=1m,mode=755 kerf "$stage" || exit 1
while [ "$count" -gt 0 ]; do
    if [ -d "$1" ]; then mkdir "$stage/$2"; else : >"$stage/$2"; fi
    mount --bind "$1" "$stage/$2" || exit 1
    shift 2
    count=$((count - 1))
done
mkdir -p "$target" && mount --rbind "$stage" "$target" && umount -l "$stage" && rmdir "$stage" || exit 1
trap - EXIT
if [ -n "$host" ]; then
    stage=$(mktemp -d) || exit 1
    [ -z "$driver" ] || mount --bind "$driver" "$stage" || exit 1
    mount -t tmpfs -o size=64k,mode=755 kerf "$host" || exit 1
    [ -z "$driver" ] || { mkdir -p "$driver" && mount --move "$stage" "$driver" || exit 1; }
    rmdir "$stage" || exit 1
fi
for at in $hidden; do [ ! -d "$at" ] || mount -t tmpfs -o size=4k,mode=700 kerf "$at" || exit 1; done
exec "$@"
"""
"""Shell: puts files where a container has them, in a mount namespace of its own: the folder, what to hide, where the
host's files are, the driver's folder there, how many files, each file with its name there, and the command."""
HIDDEN = ("/var/run/secrets", "/run/secrets", "/etc/kerf")
"""Folders of the agent's own secrets."""


class ProgramError(OSError):
    """A program of a remote GPU does not run. The text says why."""


class Certificates(msgspec.Struct, frozen=True, kw_only=True):
    """The files with which this node shows who it is. They are read at each connection, so they can be replaced."""

    certificate: Path
    key: Path
    authority: Path

    def missing(self) -> str:
        """Which of them is not there, for people; "" if all are."""
        return next((f"there is no {path}" for path in (self.certificate, self.key, self.authority)
                     if not path.is_file()), "")  # fmt: skip

    @property
    def arguments(self) -> tuple[str, str, str]:
        return str(self.certificate), str(self.key), str(self.authority)


async def start(
    command: Sequence[str], *, folder: Path, cgroup: OwnCgroup, is_up: Callable[[], bool], within_s: float,
    environment: Mapping[str, str] = {},
) -> None:  # fmt: skip
    """Starts a program in a cgroup of its own, with `folder` as its working directory and for its log. Returns once
    `is_up`. Raises ProgramError, after which nothing of it runs."""
    folders = cgroup.make()
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", _SERVE, "sh", folders, str(folder), *command,
        env={"PATH": os.environ.get("PATH", os.defpath), **environment},
        stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = asyncio.get_running_loop().time() + within_s
    try:
        while not is_up():
            if process.returncode is not None:
                raise ProgramError(f"{_name(command)} ended with status {process.returncode}: {_tail(folder / LOG)}")
            if asyncio.get_running_loop().time() > deadline:
                raise ProgramError(f"{_name(command)} is not ready after {within_s:g} s: {_tail(folder / LOG)}")
            await asyncio.sleep(LOOK_S)
        if not cgroup.pids():
            raise ProgramError(f"{_name(command)} could not be put into a cgroup of its own")
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(cgroup.end(within_s))
        raise


def mounted(  # noqa: PLR0917 - what a server sees, and what not
    mounts: Sequence[Mount], target: str, command: Sequence[str], hidden: Sequence[str], host: Path, library: str
) -> tuple[str, ...]:
    """A command that sees these files below `target`, as a container would, and nothing else there; no network, none
    of the node's other processes, and nothing in the folders `hidden`. Needs root.

    `host`: where the host's files are. Of them it sees the folder of `library` alone: the host's /proc is among them,
    and all servers have one user, so one that is taken over could read another's memory there.
    """
    words: list[str] = []
    inside = [mount for mount in mounts if Path(mount.container_path).parent == Path(target)]
    for mount in inside:
        words += (mount.host_path, Path(mount.container_path).name)
    return (
        "unshare", "--mount", "--propagation", "private", "--net", "--ipc", "--pid", "--fork", "--kill-child",
        "--mount-proc", "--", "sh", "-c", _MOUNTED, "sh",
        target, " ".join((*HIDDEN, *hidden)), *_host_files(host, library), str(len(inside)), *words, *command,
    )  # fmt: skip


def _host_files(host: Path, library: str) -> tuple[str, str]:
    """What to hide of the host, and what not; empty where the agent has the host's files as its own."""
    if host == Path("/"):
        return "", ""
    return str(host), str(Path(library).parent) if Path(library).is_relative_to(host) else ""


def put(path: Path, text: str) -> None:
    """Replaces a file that root alone may read, as a whole, unless this is in it already. Raises OSError."""
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            return
    beside = path.with_suffix(".new")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    beside.replace(path)


def put_secret(folder: Path, key: bytes) -> None:
    """Puts what the slice of this folder's name has to know, on both nodes, by this key. Raises OSError, and ValueError
    where it is none."""
    put(folder / SECRET, f"{slice_secret(key, folder.name)}\n")


def shorten_logs(folder: Path) -> None:
    """Cuts the logs of the programs below. One writes at most 100 lines a minute. Raises OSError."""
    for log in (*folder.glob(f"*/{LOG}"), *folder.glob(f"*/*/{LOG}")):
        log_files.shorten(log)


def install_client(build: Path, library_dir: Path) -> Path:
    """Copies the client's library to where containers get it from; a new build has a new folder, so that running
    containers keep theirs. Returns the folder. Raises OSError."""
    content = (build / CLIENT).read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    at = library_dir / f"remote-{digest}"
    renew(at / CLIENT, content, 0o755)
    renew(at / PRELOAD, f"{CONTAINER_LIBRARY}\n".encode(), 0o644)
    selinux.label(at / CLIENT, at / PRELOAD)
    return at


def _name(command: Sequence[str]) -> str:
    names = {SERVER: "the server", PROXY: "the proxy"}
    return next((names[Path(word).name] for word in command if Path(word).name in names), command[0])


def _tail(log: Path) -> str:
    try:
        text = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        text = ""
    return text or "it has said nothing"
