"""One GPU's MPS control daemon: started, asked and ended by NVIDIA's `nvidia-cuda-mps-control`.

The daemon outlives the agent, because containers use it. On the host it has a folder with
- `pipe`, which containers get as the pipe directory, and can write in, as their clients do: a small tmpfs in which no
  symbolic link is followed, so that none fills the host's /run or leads the daemon, which is root, to other files. It
  stays the same while the daemon is started again.
- `shm`, a tmpfs that daemon and containers have as /dev/shm, as in NVIDIA's device plugin and DRA driver
  (k8s-device-plugin, cmd/mps-control-daemon/mount; k8s-dra-driver-gpu, cmd/gpu-kubelet-plugin/sharing.go).
- `log`, which no container gets. The daemon writes there whatever it is asked, every two seconds by the agent alone.

All commands run as processes with a time limit. An agent in a container runs them in the host's mount namespace: there
the program finds the libraries of the driver, and what it leaves does not go with the agent's container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from services.node_agent import log_files
from services.node_agent.cdi.host import Host
from services.node_agent.messages import SliceNotReady
from services.node_agent.mps.plan import Seen, Server
from services.node_agent.processes import child
from services.node_agent.processes.own_cgroup import OwnCgroup
from services.node_agent.processes.owner import owner_of
from services.node_agent.processes.stat import fields
from services.node_agent.strategies.mps import PIPE, SHM

PROGRAM = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG = "log"
ANSWER_S = 5.0
START_S = 20.0
"""A server initialises the GPU, which takes seconds where no persistence daemon runs."""
END_S = 5.0
LOOK_S = 0.05
CGROUP = "kerf-mps"
"""The daemons' own cgroup: what is in the agent's ends with its container."""
SHM_OPTIONS = "size=50%,mode=1777,nosuid,nodev,noexec"
PIPE_OPTIONS = "size=1m,nr_inodes=1k,mode=755,nosuid,nodev,noexec"
"""Sockets, pipes, and files with a word in them; containers of any user may extend those."""
NO_LINKS = "nosymfollow"
"""Of Linux 5.10 and util-linux 2.38. An older kernel ignores it, an older `mount` fails."""

log = structlog.get_logger("mps")


class MpsError(SliceNotReady):
    """An MPS daemon does not do what it should. The text says what."""

    code = "mps-not-ready"


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """How the programs of this host are run."""

    program: str
    """nvidia-cuda-mps-control, as the host has it."""
    prefix: tuple[str, ...] = ()
    """The command that enters the host's mount namespace; empty: the agent is in it."""
    environment: dict[str, str] = {}
    cgroups: Path | None = None
    """Where the host's cgroups are mounted, if the daemons must leave the agent's; None: they need not."""
    proc: Path = Path("/proc")
    lock: Path | None = None
    """The file that the node's agent keeps locked while it works. Without one a daemon ends when it has no clients."""
    guard_s: float = 30.0
    """How often that is looked at, by a shell that runs as long as the daemon."""


GUARD = "kerf-mps-guard"
GUARD_ROUNDS = 10
_GUARD = """
for at in "$2" "$2"/*; do echo $$ >"$at/kerf-mps/cgroup.procs"; done 2>/dev/null
idle=0
while sleep "$4" && kill -0 "$1" 2>/dev/null; do
    idle=$((idle + 1))
    flock --nonblock "$3" true || idle=0
    for server in $(echo get_server_list | "$6"); do
        [ -z "$(echo "get_client_list $server" | "$6")" ] || idle=0
    done
    if [ "$idle" -ge "$5" ]; then echo quit | "$6"; exit; fi
done
"""
"""Ends a daemon when for some rounds no agent has had the lock and no client was there: of a node whose agent was
killed and never comes back, such as one that was taken out of Kerf. Its arguments: PID of the daemon, root of cgroups,
lock, seconds, rounds, program."""


def tools_of(host: Host, program: str, *, cgroups: Path, lock: Path) -> Tools:
    """The tools of this host. `program`: the operator's path of nvidia-cuda-mps-control; "": the driver's. `lock`: the
    file that the node's agent keeps locked."""
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    if host.driver_root != "/":
        folders = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
        environment["LD_LIBRARY_PATH"] = ":".join(host.of_driver(folder) for folder in folders)
        environment["PATH"] = f"{host.of_driver('/usr/bin')}:{environment['PATH']}"
    inside = host.root != Path("/") and (host.proc / "1/ns/mnt").exists()
    in_pod = owner_of(os.getpid())
    return Tools(
        program=program or host.of_driver(f"/usr/bin/{PROGRAM}"),
        prefix=("nsenter", f"--mount={host.proc}/1/ns/mnt", "--") if inside else (),
        environment=environment,
        cgroups=cgroups if in_pod is not None and in_pod.pod_uid else None,
        lock=lock,
    )


class Process(msgspec.Struct, frozen=True):
    pid: int
    is_control: bool


class Daemon:
    def __init__(self, uuid: str, folder: Path, tools: Tools) -> None:
        """`folder` has the same path on the host and for the agent."""
        self.uuid, self.folder, self._tools = uuid, folder, tools
        self.pipe, self.shm, self._log = folder / PIPE, folder / SHM, folder / LOG
        self._control = 0
        """The PID that was found last, so that not all processes of the host are read each time."""

    async def start(self) -> tuple[int, int]:
        """Starts the daemon and its server. Returns their PIDs. Raises MpsError; then nothing of it runs."""
        await asyncio.to_thread(self._make_folders)
        if not await _is_mounted(self.shm):
            await self._mount(self.shm, SHM_OPTIONS)
        await self._limit_pipe()
        # A root of a container can have put anything in place of what the last daemon has left there.
        await asyncio.to_thread(_clear, self.pipe)
        try:
            await self._run([*self.with_shm, self._tools.program, "-d", "-multiuser-server"], START_S)
            control = next((one.pid for one in await self.processes() if one.is_control), 0)
            if not control:
                raise MpsError(f"{self._tools.program} -d has ended without leaving a daemon; see {self._log}")
            self._leave_cgroup(control)
            await self.ask("start_server -uid 0", START_S)
            server = await self._first_server()
            await self._guard(control)
        except BaseException:  # an end of the agent, too: what has no guard would be left for ever
            await self.stop()
            raise
        return control, server

    async def adopt(self) -> None:
        """Repeats what a killed agent has left out: its start of a daemon ends with the guard. Raises MpsError."""
        processes = await self.processes()
        control = next((one.pid for one in processes if one.is_control), 0)
        if not control:
            return
        if await asyncio.to_thread(guards, control, self.pipe, self._tools.proc):
            return
        for one in processes:
            self._leave_cgroup(one.pid)
        await self._guard(control)

    async def stop(self) -> None:
        """Ends the daemon, its servers, and what is left of them. The folder stays. Raises MpsError if it cannot."""
        if any(one.is_control for one in await self.processes()):
            with contextlib.suppress(MpsError):  # what does not end by request ends by signal
                for server in await self._servers():
                    await self.ask(f"shutdown_server {server} -f")
                await self.ask("quit")
        if not await self._ended(END_S):
            for one in await self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            if not await self._ended(END_S):
                raise MpsError(f"processes of the MPS of GPU {self.uuid} outlive SIGKILL: {await self.processes()}")

    async def remove(self) -> None:
        """Ends the daemon, and removes its folder. Raises MpsError, OSError."""
        await self.stop()
        for path in (self.shm, self.pipe):
            if await _is_mounted(path):
                await self._run(["umount", "--lazy", str(path)])
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(shutil.rmtree, self.folder)

    async def see(self) -> Seen:
        """What there is of it now. It is not asked about servers if it does not run."""
        left: tuple[Server, ...] = ()
        if not await asyncio.to_thread(_is_daemons, self._tools.proc / str(self._control), self.pipe):
            processes = await self.processes()
            self._control = next((one.pid for one in processes if one.is_control), 0)
            left = tuple(Server(one.pid) for one in processes if not one.is_control)
        control = self._control
        if not control:
            return Seen(servers=left)
        try:
            servers = [Server(pid, (await self.ask(f"get_server_status {pid}")).strip())
                       for pid in await self._servers()]  # fmt: skip
        except MpsError:
            return Seen(control=control, servers=left, answers=False)
        return Seen(control=control, servers=tuple(servers))

    async def shorten_logs(self) -> None:
        """Cuts the logs of the daemon and its servers: nothing else does, as long as a slice is there. Raises
        OSError."""
        await asyncio.to_thread(log_files.shorten_all, self._log)

    async def clients(self) -> frozenset[int]:
        """The PIDs of the clients of its servers. Raises MpsError."""
        lists = [await self.ask(f"get_client_list {server}") for server in await self._servers()]
        return frozenset(int(word) for text in lists for word in text.split() if word.isdecimal())

    async def ask(self, command: str, timeout_s: float = ANSWER_S) -> str:
        """Returns the daemon's answer to a command. Raises MpsError."""
        return await self._run([self._tools.program], timeout_s, command)

    async def processes(self) -> tuple[Process, ...]:
        """Its processes: those of NVIDIA's names that have its pipe directory in their environment, of no pod."""
        return await asyncio.to_thread(find, self.pipe, self._tools.proc)

    @property
    def with_shm(self) -> tuple[str, ...]:
        """The command that runs another one with the GPU's /dev/shm, and not the host's with files of others."""
        script = 'mount --bind "$1" /dev/shm && shift && exec "$@"'
        return ("unshare", "--mount", "--propagation", "private", "--", "sh", "-c", script, "sh", str(self.shm))

    def _make_folders(self) -> None:
        """Servers and clients may be of any user. What is mounted since an earlier start is that of running
        containers."""
        for path, mode in ((self.folder, 0o755), (self.pipe, 0o755), (self._log, 0o755), (self.shm, 0o1777)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)

    async def _limit_pipe(self) -> None:
        """Mounts the tmpfs of the pipe directory, if that is not mounted. Raises MpsError.

        A folder in which an agent of a former version has started a daemon stays as it is until the GPU's last slice
        has ended: containers have it mounted, and would not see the sockets in what hides it.
        """
        if await _is_mounted(self.pipe):
            return
        if await asyncio.to_thread(_has_entries, self._log):
            log.warning("mps_pipe_not_limited", gpu=self.uuid, effect="containers can fill the file system of run_dir")
            return
        try:
            await self._mount(self.pipe, f"{PIPE_OPTIONS},{NO_LINKS}")
        except MpsError:
            await self._mount(self.pipe, PIPE_OPTIONS)

    async def _mount(self, path: Path, options: str) -> None:
        await self._run(["mount", "-t", "tmpfs", "-o", options, CGROUP, str(path)])

    async def _servers(self) -> tuple[int, ...]:
        return tuple(int(word) for word in (await self.ask("get_server_list")).split() if word.isdecimal())

    async def _first_server(self) -> int:
        deadline = asyncio.get_running_loop().time() + START_S
        while not (servers := await self._servers()):
            if asyncio.get_running_loop().time() > deadline:
                raise MpsError(f"no MPS server has started for GPU {self.uuid} within {START_S:g} s; see {self._log}")
            await asyncio.sleep(LOOK_S)
        return servers[0]

    async def _ended(self, within_s: float) -> bool:
        deadline = asyncio.get_running_loop().time() + within_s
        while await self.processes():
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    async def _run(self, command: Sequence[str], timeout_s: float = ANSWER_S, line: str = "") -> str:
        """Runs a command on the host and returns its output. Raises MpsError."""
        environment = {
            **self._tools.environment,
            VARIABLE: str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self._log),
            "CUDA_VISIBLE_DEVICES": self.uuid,
        }
        what = " ".join((Path(command[0]).name, line)).strip()
        # No pipes: a daemon in the background would keep one open, and a program may end before it reads one.
        with os.fdopen(os.memfd_create("words"), "w+b") as words, os.fdopen(os.memfd_create("answer"), "w+b") as file:
            words.write(f"{line}\n".encode() if line else b"")
            words.flush()
            words.seek(0)
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._tools.prefix, *command, env=environment, stdin=words, stdout=file,
                    stderr=file, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise MpsError(f"{command[0]}: {error.strerror}") from error
            try:
                async with asyncio.timeout(timeout_s):
                    await process.wait()
            except TimeoutError:
                raise MpsError(f"{what} has not ended within {timeout_s:g} s") from None
            finally:
                if process.returncode is None:
                    await child.end(process)
            file.seek(0)
            text = file.read().decode(errors="replace")
        if process.returncode:
            raise MpsError(f"{what} ended with status {process.returncode}: {text.strip()[-300:]}")
        return text

    async def _guard(self, control: int) -> None:
        tools = self._tools
        if tools.lock is not None:
            words = (control, tools.cgroups or "/nowhere", tools.lock, tools.guard_s, GUARD_ROUNDS, tools.program)
            await self._run(["setsid", "--fork", "sh", "-c", _GUARD, GUARD, *map(str, words)])

    def _leave_cgroup(self, pid: int) -> None:
        """Moves the daemon out of the agent's cgroups, before it starts a server. Raises MpsError."""
        if self._tools.cgroups is not None and not OwnCgroup(self._tools.cgroups, CGROUP).take(pid):
            raise MpsError(f"the MPS daemon cannot leave the agent's cgroup, with which it would end: {CGROUP}")


async def _is_mounted(path: Path) -> bool:
    return await asyncio.to_thread(os.path.ismount, path)


def _has_entries(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(entries)


def _clear(folder: Path) -> None:
    """Removes what is in a folder, and not the folder: running containers have it mounted, and may change it meanwhile.
    Raises OSError."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in os.listdir(opened):
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISDIR(os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode):
                    shutil.rmtree(name, dir_fd=opened)
                else:
                    os.unlink(name, dir_fd=opened)
    finally:
        os.close(opened)


def find(pipe: Path, proc: Path = Path("/proc")) -> tuple[Process, ...]:
    """The processes of the daemon with this pipe directory. A process of another pod than the agent's is none of them,
    whatever its name and its environment say."""
    names = ((folder, _is_daemons(folder, pipe)) for folder in proc.iterdir() if folder.name.isdigit())
    found = [Process(int(folder.name), name == PROGRAM) for folder, name in names if name]
    return tuple(sorted(found, key=lambda one: one.pid))


def _is_daemons(folder: Path, pipe: Path) -> str:
    """Which program of the daemon a process is, by its folder in /proc; "" if it is none."""
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
        name = Path(os.fsdecode(words[0])).name
        # Without -d it is a user interface, which ends by itself.
        if name != SERVER and (name != PROGRAM or b"-d" not in words):
            return ""
        return name if _is_ours(folder, pipe) else ""
    except OSError:
        return ""  # it has ended


def guards(control: int, pipe: Path, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """The shells that look after this daemon."""
    return tuple(sorted(int(folder.name) for folder in proc.iterdir() if folder.name.isdigit()
                        and _is_guard(folder, control, pipe)))  # fmt: skip


def _is_guard(folder: Path, control: int, pipe: Path) -> bool:
    try:
        its_name = f"\0{GUARD}\0{control}\0".encode() in (folder / "cmdline").read_bytes()
        return its_name and _is_ours(folder, pipe)
    except OSError:
        return False  # it has ended


def _is_ours(folder: Path, pipe: Path) -> bool:
    """Whether a process runs with this pipe directory and in no pod but the agent's. Raises OSError: it has ended."""
    if f"{VARIABLE}={pipe}".encode() not in (folder / "environ").read_bytes().split(b"\0"):
        return False
    if fields(folder)[:1] == [b"Z"]:
        return False
    of, own = owner_of(int(folder.name), folder.parent), owner_of(os.getpid())
    return of is not None and of.pod_uid in ("", "" if own is None else own.pod_uid)
