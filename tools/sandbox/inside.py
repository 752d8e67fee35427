"""Process 1 of the sandbox: makes its private places, then starts and kills what it is told to, line by line in JSON.

    {"do": "start", "name": "kubelet", "argv": [...], "env": {...}, "log": "..."}    {"pid": 17}
    {"do": "signal", "name": "kubelet", "signal": 19}                                {}
    {"do": "kill", "name": "kubelet", "signal": 9}                                   {"status": -9}; it has ended
    {"do": "status", "name": "kubelet"}                                              {"status": null} while it runs

Its first line, {}, says that it is ready. It ends, and everything with it, when its input does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.sandbox import cgroups

GPUS = 8
DRIVER_VERSION = "580.95.05"
DRIVER_ROOT = "/run/nvidia/driver"
CAPABILITIES = "/proc/driver/nvidia/capabilities"
CAPABILITIES_MAJOR = 508
"""The number of the device nodes that belong to MIG instances. No kernel driver has it: opening one fails."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "kmsg")
_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet sets on its machine. These are not ours to change: it finds them as it wants them, in files over
them."""


def bus_id(index: int) -> str:
    """A GPU's place on PCIe, as the kernel writes it."""
    return f"0000:{index + 1:02x}:00.0"


def minor(index: int) -> int:
    """The number of a GPU's device node, which need not be NVML's index."""
    return GPUS - 1 - index


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def private_places(state: Path, groups: list[cgroups.Hierarchy]) -> None:
    """What kubelet, containerd and agent write goes to memory, and is gone with the namespace."""
    mount("--make-rprivate", "/")
    own = state / "own"
    own.mkdir()
    mount("-t", "tmpfs", "sandbox", str(own))
    for name in ("etc", "var"):
        upper, work = own / f"{name}-upper", own / f"{name}-work"
        upper.mkdir()
        work.mkdir()
        mount("-t", "overlay", "sandbox", "-o", f"lowerdir=/{name},upperdir={upper},workdir={work}", f"/{name}")
    for place in ("/run", "/var/lib/kubelet"):
        Path(place).mkdir(exist_ok=True)
        mount("-t", "tmpfs", "sandbox", place)
    for place in ("/etc/cdi", "/run/cdi", "/run/containerd"):
        Path(place).mkdir(exist_ok=True)
    _devices(own / "dev")
    _driver()
    for path, value in _SYSCTLS.items():
        file = own / path.replace("/", "-")
        file.write_text(f"{value}\n")
        if (Path("/proc/sys") / path).exists():
            mount("--bind", str(file), f"/proc/sys/{path}")
    _groups(groups)


def _devices(made: Path) -> None:
    """A /dev of our own, with nodes of an NVIDIA driver that is not there."""
    made.mkdir()
    for name in _DEVICES:
        if Path("/dev", name).exists():
            (made / name).touch()
            mount("--bind", f"/dev/{name}", str(made / name))
    for name in ("pts", "shm", "mqueue"):
        if Path("/dev", name).is_dir():
            (made / name).mkdir()
            mount("--rbind", f"/dev/{name}", str(made / name))
    for name, target in {
        "fd": "/proc/self/fd",
        "stdin": "fd/0",
        "stdout": "fd/1",
        "stderr": "fd/2",
        "ptmx": "pts/ptmx",
    }.items():
        (made / name).symlink_to(target)
    nodes = {f"nvidia{index}": (195, index) for index in range(GPUS)}
    for name, (major, minor) in {
        **nodes,
        "nvidiactl": (195, 255),
        "nvidia-uvm": (511, 0),
        "nvidia-uvm-tools": (511, 1),
    }.items():
        os.mknod(made / name, 0o666 | 0o020000, os.makedev(major, minor))
    mount("--rbind", str(made), "/dev")


def _driver() -> None:
    """The files of a driver that is not there, as a driver container lays them out; an older version's beside them."""
    mount("-t", "tmpfs", "sandbox", "/proc/driver")
    kernel = Path("/proc/driver/nvidia")
    kernel.mkdir()
    (kernel / "version").write_text(
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER_VERSION}  Release Build\n"
    )
    own = Path("/run/proc-devices")
    own.write_text(
        Path("/proc/devices").read_text().replace("\nBlock", f"{CAPABILITIES_MAJOR} nvidia-caps\n\nBlock", 1)
    )
    mount("--bind", str(own), "/proc/devices")
    for index in range(GPUS):
        folder = kernel / "gpus" / bus_id(index)
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Bus Location: \t {bus_id(index)}\nDevice Minor: \t {minor(index)}\n")
    libraries, programs = Path(DRIVER_ROOT, "usr/lib64"), Path(DRIVER_ROOT, "usr/bin")
    libraries.mkdir(parents=True)
    programs.mkdir()
    (programs / "nvidia-smi").touch(0o755)
    for name in ("libcuda", "libnvidia-ml"):
        for version in (DRIVER_VERSION, "570.86.15"):
            (libraries / f"{name}.so.{version}").touch()
        (libraries / f"{name}.so.1").symlink_to(f"{name}.so.{DRIVER_VERSION}")
    (libraries / "libcuda.so").symlink_to("libcuda.so.1")


def _groups(groups: list[cgroups.Hierarchy]) -> None:
    """The hierarchies as seen from our own group, which is their root from here on."""
    if groups[0].version == 2:
        mount("-t", "cgroup2", "sandbox", str(groups[0].mount))
        leaf = groups[0].mount / "init"  # a group with processes may not hand controllers down
        leaf.mkdir()
        (leaf / "cgroup.procs").write_text("0")
        controllers = (groups[0].mount / "cgroup.controllers").read_text().split()
        (groups[0].mount / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in controllers))
        return
    mount("-t", "tmpfs", "sandbox", "/sys/fs/cgroup")
    for hierarchy in groups:
        hierarchy.mount.mkdir(parents=True, exist_ok=True)
        mount("-t", "cgroup", "-o", hierarchy.options, "sandbox", str(hierarchy.mount))


class Processes:
    """What was started by name. Orphans come to process 1 too, and are reaped with the rest."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._ended: dict[int, int] = {}
        signal.signal(signal.SIGCHLD, self._reap)

    def start(self, name: str, argv: list[str], env: dict[str, str], log: str) -> dict[str, Any]:
        with Path(log).open("ab") as out:
            child = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        child.returncode = 0  # so that it is not waited for again
        self._pids[name] = child.pid
        return {"pid": child.pid}

    def kill(self, name: str, number: int) -> dict[str, Any]:
        """Waits for its end."""
        pid = self._pids[name]
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        if pid not in self._ended:
            os.kill(pid, number)
            self._ended[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        return {"status": self._ended[pid]}

    def signal(self, name: str, number: int) -> dict[str, Any]:
        os.kill(self._pids[name], number)
        return {}

    def status(self, name: str) -> dict[str, Any]:
        return {"status": self._ended.get(self._pids[name])}

    def _reap(self, *_: object) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._ended[pid] = os.waitstatus_to_exitcode(status)


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    private_places(Path(sys.argv[1]), cgroups.hierarchies())
    processes = Processes()
    _say({})
    for line in sys.stdin:
        order = json.loads(line)
        match order["do"]:
            case "start":
                answer = processes.start(order["name"], order["argv"], order["env"], order["log"])
            case "kill":
                answer = processes.kill(order["name"], order["signal"])
            case "signal":
                answer = processes.signal(order["name"], order["signal"])
            case _:
                answer = processes.status(order["name"])
        _say(answer)


if __name__ == "__main__":
    main()
