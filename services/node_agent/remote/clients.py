"""The containers of this node that use a GPU of another node: each has a proxy on the node, and a library inside.

A container gets the socket of its own proxy. Certificate, key and secret stay on the node.
"""

from __future__ import annotations

import asyncio
import shutil
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from services.node_agent import measured_files
from services.node_agent.cdi.spec import ContainerEdits, Mount
from services.node_agent.messages import SliceNotReady
from services.node_agent.processes.own_cgroup import OwnCgroup
from services.node_agent.remote import programs
from services.node_agent.remote.programs import CONTAINER_LIBRARY, PRELOAD, Certificates, ProgramError
from services.node_agent.remote.slices import slice_name
from services.node_agent.strategies import selinux
from shared.model.grant import ContainerGrant
from shared.model.names import certificate_name

SOCKET, WAY, CONNECTED = "socket", "way", "connected"
PROGRAMS = "programs"
"""The folder that the container sees, with the socket alone."""
CONTAINER_FOLDER = "/run/kerf/remote"
CGROUP = "kerf-remote/clients"
START_S, END_S = 10.0, 10.0
REACH_S, AGAIN_S = 10.0, 0.1
"""How long a container waits for its server: the kubelet gives its start 30 s."""
_WELCOME_BYTES = 16
_NOBODY = struct.pack("<IIQQII", 0x4B524D31, 0, 0, 0, 0, 0)
"""The first message of a client (native/remote/wire.h), of a version that no server has."""
_BIND = ("bind", "nosuid", "nodev", "ro")


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """Where a container's calls go: kept, so that the proxy can be started again."""

    uid: str
    container: str
    address: str
    peer: str
    """The name in the certificate of the other node."""


class Clients:
    def __init__(
        self, folder: Path, *, build: Path, library_dir: Path, cgroups: Path, key: Callable[[], bytes],
        certificates: Certificates, prefix: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """`folder` holds the folders of the containers, and nothing else. `prefix`: the command that runs another one
        in the host's network; empty: the agent is in it."""
        self._folder, self._build, self._library_dir, self._cgroups = folder, build, library_dir, cgroups
        self._key, self._certificates, self._prefix = key, certificates, prefix
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By folder, for as long as anything is done about it: `keep` comes at any moment."""

    def any(self) -> bool:
        """Whether a container of this node has a way to a GPU of another one."""
        return bool(self._ways())

    async def edits(
        self, uid: str, grant_id: str, container: str, share: ContainerGrant, address: str
    ) -> ContainerEdits:
        """See RemoteServing.client_edits."""
        name = slice_name(uid, grant_id, container)
        folder = self._folder / name
        try:
            library = programs.install_client(self._build, self._library_dir)
            way = Way(uid=uid, container=container, address=address, peer=certificate_name(share.gpus[0].node))
            async with self._lock(folder):
                self._write(folder, way)
                await self._connect(folder)
            await _reach(folder / PROGRAMS / SOCKET)
        except (OSError, ValueError) as error:
            raise SliceNotReady(f"the way to the GPU at {address} cannot be made: {error}") from error
        return ContainerEdits(
            mounts=(
                Mount(host_path=str(library / programs.CLIENT), container_path=CONTAINER_LIBRARY, options=_BIND),
                Mount(host_path=str(library / PRELOAD), container_path=f"/etc/{PRELOAD}", options=_BIND),
                Mount(host_path=str(folder / PROGRAMS), container_path=CONTAINER_FOLDER, options=_BIND),
            )
        )

    async def ended(self, uid: str, container: str) -> None:
        """See RemoteServing.client_ended."""
        for folder, way in self._ways():
            if (way.uid, way.container) == (uid, container):
                async with self._lock(folder):
                    await self._end(folder)

    async def keep(self, containers: Callable[[], Collection[tuple[str, str]]]) -> list[str]:
        """Starts the proxies of these containers again that have ended by themselves, and ends those of all others: of
        containers that ended while no agent was there to see it. Returns what could not be done.

        `containers` is asked before each: a container may start again while another one's proxy is awaited."""
        failed = []
        for folder, way in self._ways():
            try:
                async with self._lock(folder):
                    if (way.uid, way.container) not in containers():
                        await self._end(folder)
                        continue
                    if (folder / WAY).exists():
                        programs.put_secret(folder, self._key())  # the key may be another one by now
                        if not self._cgroup(folder).pids():
                            await self._connect(folder)
            except (OSError, ValueError) as error:
                failed.append(str(error))
        return failed

    async def _end(self, folder: Path) -> None:
        await self._cgroup(folder).end(END_S)
        _remove(folder)

    def _lock(self, folder: Path) -> asyncio.Lock:
        return self._locks.setdefault(folder.name, asyncio.Lock())

    def _write(self, folder: Path, way: Way) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / PROGRAMS).mkdir(mode=0o755, exist_ok=True)
        selinux.label(folder / PROGRAMS)
        programs.put_secret(folder, self._key())
        measured_files.store(folder / WAY, way)

    async def _connect(self, folder: Path) -> None:
        """Starts the container's proxy, unless it runs. Raises ProgramError."""
        way = measured_files.load(folder / WAY, Way)
        if way is None:
            raise ProgramError(f"{folder / WAY} cannot be read")
        at, cgroup, kept = folder / PROGRAMS / SOCKET, self._cgroup(folder), folder / CONNECTED
        if cgroup.pids() and at.is_socket() and measured_files.load(kept, Way) == way:
            return
        if missing := self._certificates.missing():
            raise ProgramError(missing)
        await cgroup.end(END_S)
        at.unlink(missing_ok=True)
        await programs.start(
            (
                *self._prefix, str(self._build / programs.PROXY), "connect", str(at), way.address, way.peer,
                folder.name, str(folder / programs.SECRET), *self._certificates.arguments,
            ),
            folder=folder,
            cgroup=cgroup,
            is_up=at.is_socket,
            within_s=START_S,
        )  # fmt: skip
        measured_files.store(kept, way)

    def _ways(self) -> list[tuple[Path, Way]]:
        return measured_files.load_each(self._folder, WAY, Way)

    def _cgroup(self, folder: Path) -> OwnCgroup:
        return OwnCgroup(self._cgroups, f"{CGROUP}/{folder.name}")


def _remove(folder: Path) -> None:
    if folder.exists():  # another one may have seen the container's end, too
        shutil.rmtree(folder)


async def _reach(path: Path) -> None:
    """Waits until the server of the other node answers. It is told of the grant when this node is, and a program that
    began before it would fail. Raises ProgramError."""
    deadline = asyncio.get_running_loop().time() + REACH_S
    while not await _answers(path):
        if asyncio.get_running_loop().time() > deadline:
            raise ProgramError(f"its server has not answered within {REACH_S:g} s; the kubelet tries again")
        await asyncio.sleep(AGAIN_S)


async def _answers(path: Path) -> bool:
    """Whether a server refuses a client without a version: one that refuses is there."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        writer.write(_NOBODY)
        await writer.drain()
        async with asyncio.timeout(REACH_S):
            return len(await reader.readexactly(_WELCOME_BYTES)) == _WELCOME_BYTES
    except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.close()
