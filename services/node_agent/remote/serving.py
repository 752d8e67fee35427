"""The servers of this node's GPUs for containers of other nodes. Each runs inside a slice of this node.

Beside the slice a server has a folder: `peer` and `secret`, which the node's proxy compares with who comes; `owner`, by
which a later agent knows whose it is; `socket` and `log`. Its processes are in a cgroup with the pod's UID in its name,
so that whatever looks at processes on a GPU (usage, escapes, the police, the driver's limits) finds the pod.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from services.node_agent import measured_files
from services.node_agent import messages as m
from services.node_agent.cdi.spec import ContainerEdits, Mount
from services.node_agent.processes.own_cgroup import OwnCgroup
from services.node_agent.remote import programs
from services.node_agent.remote.slices import slice_name
from services.node_agent.strategies.interposer import CONTAINER_DIR, CONTAINER_LIBRARY, PRELOAD
from shared.model.grant import ContainerGrant, Grant
from shared.model.names import certificate_name
from shared.model.units import MIB

PEER, OWNER, SOCKET = "peer", "owner", "socket"
CGROUP = "kerf-remote"
TASKS = 8192
"""Threads and processes of one server: a thread for each thread of its programs, and the driver's own."""
START_S = 20.0
"""The driver may take seconds to initialise a GPU, but the server does not wait for that."""
END_S = 10.0

Enforced = Callable[[m.HandOver, Grant | None], Awaitable[ContainerEdits]]
"""Prepares a slice of this node and returns what a container gets for it. Raises OSError or ValueError."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose server it is."""

    uid: str
    container: str
    grant_id: str


class Serving:
    def __init__(
        self, folder: Path, *, build: Path, cgroups: Path, key: Callable[[], bytes], libcuda: Callable[[], str],
        enforced: Enforced, grant_of: Callable[[str], Grant | None], memory_mib: int, hidden: Sequence[str] = (),
        host: Path = Path("/"), environment: Mapping[str, str] = {},
    ) -> None:  # fmt: skip
        """`folder` holds the folders of the servers, and nothing else. `key`: the installation's, see `slice_secret`.

        `libcuda`: the driver's library as this process sees it. `grant_of` returns the grant of a pod by its UID.
        `memory_mib`: the host memory of one server with its programs. `hidden`: folders that servers must not see.
        `host`: where the host's files are; servers see the driver's alone.
        `environment`: of the servers, beside what their slices need.
        """
        self.folder, self._build, self._cgroups = folder, build, cgroups
        self._key, self._libcuda, self._enforced, self._grant_of = key, libcuda, enforced, grant_of
        self._memory_mib, self._hidden, self._host, self._environment = memory_mib, hidden, host, dict(environment)

    async def serve(self, uid: str, grant_id: str, container: str, share: ContainerGrant, peer_node: str) -> str:
        """See RemoteServing.serve."""
        if self.find(uid, grant_id, container, peer_node):
            return ""
        name = slice_name(uid, grant_id, container)
        folder, cgroup = self.folder / name, self._cgroup(uid, name)
        try:
            await cgroup.end(END_S)  # what is left of a start that failed
            cgroup.make()  # limits of the driver's are set for it
            order = m.HandOver(uid, container, grant_id, share.served, None)
            edits = await self._enforced(order, self._grant_of(uid))
            self._write(folder, Owner(uid=uid, container=container, grant_id=grant_id), peer_node)
            cgroup.limit(self._memory_mib * MIB, TASKS)
            await programs.start(
                self._command(edits),
                folder=folder,
                cgroup=cgroup,
                environment=self._environment | {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in share.gpus)},
                is_up=lambda: _listens(folder / SOCKET),
                within_s=START_S,
            )
        except (OSError, ValueError) as error:
            if not cgroup.pids():  # else its folder stays: by it `end` and `running` know of what runs
                with contextlib.suppress(OSError):
                    await cgroup.end(END_S)
                shutil.rmtree(folder, ignore_errors=True)
            return str(error) or type(error).__name__
        return ""

    def find(self, uid: str, grant_id: str, container: str, peer_node: str) -> bool:
        """See RemoteServing.find."""
        name = slice_name(uid, grant_id, container)
        folder = self.folder / name
        if not (self._cgroup(uid, name).pids() and _listens(folder / SOCKET)):
            return False
        with contextlib.suppress(OSError, ValueError):  # it runs all the same; `renew_secrets` tries again
            self._admit(folder, peer_node)
        return True

    def renew_secrets(self) -> list[str]:
        """Gives all servers the secrets by the present key. Returns what could not be done."""
        failed = []
        for folder, _ in self._owners():
            if (folder / programs.SECRET).exists():  # else it is being ended, and lets no more clients in
                try:
                    programs.put_secret(folder, self._key())
                except (OSError, ValueError) as error:
                    failed.append(str(error))
        return failed

    async def end(self, uid: str, grant_id: str, container: str) -> None:
        """See RemoteServing.end."""
        for folder, owner in self._owners():
            if (owner.uid, owner.container) == (uid, container) and grant_id in ("", owner.grant_id):
                # First nobody new can come, then what runs is ended.
                (folder / programs.SECRET).unlink(missing_ok=True)
                await self._cgroup(uid, folder.name).end(END_S)
                shutil.rmtree(folder)

    def running(self) -> frozenset[tuple[str, str]]:
        """See RemoteServing.running."""
        return frozenset(
            (owner.uid, owner.container)
            for folder, owner in self._owners()
            if self._cgroup(owner.uid, folder.name).pids()
        )

    def _write(self, folder: Path, owner: Owner, peer_node: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        measured_files.store(folder / OWNER, owner)
        self._admit(folder, peer_node)

    def _admit(self, folder: Path, peer_node: str) -> None:
        programs.put(folder / PEER, f"{certificate_name(peer_node)}\n")
        programs.put_secret(folder, self._key())

    def _command(self, edits: ContainerEdits) -> tuple[str, ...]:
        """The server with the slice's control block where a container has it, under the interposer if the strategy has
        one. The socket's name is relative: the folder may be hidden by the mounts."""
        if others := [mount.container_path for mount in edits.mounts if not _is_of_the_interposer(mount)]:
            raise ValueError(f"no server runs in a slice that needs {', '.join(others)}")
        variables = list(edits.env)
        if any(mount.container_path == CONTAINER_LIBRARY for mount in edits.mounts):
            # Not by /etc/ld.so.preload, which is the agent's own. The server does not change its environment.
            variables.append(f"LD_PRELOAD={CONTAINER_LIBRARY}")
        libcuda = self._libcuda()
        server = ("env", *variables, str(self._build / programs.SERVER), SOCKET, libcuda)
        return programs.mounted(edits.mounts, CONTAINER_DIR, server, self._hidden, self._host, libcuda)

    def _owners(self) -> list[tuple[Path, Owner]]:
        return measured_files.load_each(self.folder, OWNER, Owner)

    def _cgroup(self, uid: str, name: str) -> OwnCgroup:
        return OwnCgroup(self._cgroups, f"{CGROUP}/pod{uid}/{name}")


def _is_of_the_interposer(mount: Mount) -> bool:
    return mount.container_path in (CONTAINER_LIBRARY, f"/etc/{PRELOAD}") or mount.container_path.startswith(
        f"{CONTAINER_DIR}/"
    )


def _listens(path: Path) -> bool:
    """Whether a server listens there. The server sees a connection that ends before its first word. One with a full
    queue listens too: it is busy or stuck, what it has on the GPU is its programs', and no start would help."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # else the agent stands still for as long as the queue is full
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True
