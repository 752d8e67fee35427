"""GPUs over the network on one node: what it offers, its two proxies' health, and what it measures of the network."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import msgspec

from services.node_agent.cdi.spec import ContainerEdits
from services.node_agent.config import Config
from services.node_agent.processes import child
from services.node_agent.processes.own_cgroup import OwnCgroup
from services.node_agent.remote import programs
from services.node_agent.remote.clients import Clients
from services.node_agent.remote.identity import Identity
from services.node_agent.remote.network import Network
from services.node_agent.remote.programs import ProgramError
from services.node_agent.remote.serving import CGROUP, Enforced, Serving
from shared.bus.port import BusError
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.queries import REMOTE_PEERS, RemotePeer, RemotePeersAnswer, RemotePeersQuery
from shared.model.grant import ContainerGrant, Grant
from shared.model.names import certificate_name
from shared.model.network import NetworkLink, RemoteAbility
from shared.service import Context

FOLDER, SERVING, CLIENTS, PROXY = "remote", "serving", "clients", "proxy"
LEAVING = "leaving"
KEEP_S = 2.0
START_S, END_S, LOOK_S = 10.0, 10.0, 0.02
LISTENS_NO_MORE = b"leaving\n"
"""What a proxy says that has been told to end (native/remote/proxy.c)."""
OFF = "this node neither serves GPUs to other nodes nor uses theirs"
PROBE_ROUNDS, PROBE_MIB, PROBE_S = 21, 4, 20.0
"""A probe: so many round trips, so much data, and at most so long."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe prints."""

    rtt_us: float
    mib_s: float


class Remote:
    """RemoteServing of this node."""

    def __init__(
        self, ctx: Context, config: Config, *, libcuda: Callable[[], str], enforced: Enforced,
        grant_of: Callable[[str], Grant | None], clients: Callable[[], Collection[tuple[str, str]]],
        say: Callable[[], Awaitable[object]],
    ) -> None:  # fmt: skip
        """`clients` returns the containers of this node that use GPUs of others, as (uid, container). `say` publishes
        what the node offers now. The rest: see `Serving`."""
        self._ctx, self._config, self._say, self._containers = ctx, config, say, clients
        self._folder, self._cgroups = Path(config.run_dir) / FOLDER, Path(config.cgroup_dir)
        self._build = Path(config.remote_dir)
        self._identity = Identity(ctx, config)
        self._certificates = self._identity.certificates
        # A proxy in the network of the agent's pod would lose it with the pod.
        host = config.host()
        in_pod = host.root != Path("/") and (host.proc / "1/ns/net").exists()
        self._in_host_network = ("nsenter", f"--net={host.proc}/1/ns/net", "--") if in_pod else ()
        self._serving = Serving(
            self._folder / SERVING,
            build=self._build,
            cgroups=self._cgroups,
            key=self._identity.grants_key,
            libcuda=libcuda,
            enforced=enforced,
            grant_of=grant_of,
            memory_mib=config.remote_server_mib,
            hidden=(str(Path(config.checkpoint_file).parent), config.kubelet_dir, config.cdi_dir),
            host=host.root,
            environment=config.remote_server_environment,
        )
        self._clients = Clients(
            self._folder / CLIENTS,
            build=self._build,
            library_dir=Path(config.library_dir),
            cgroups=self._cgroups,
            key=self._identity.grants_key,
            certificates=self._certificates,
            prefix=self._in_host_network,
        )
        self._proxy = OwnCgroup(self._cgroups, f"{CGROUP}/{PROXY}")
        self._leaving = OwnCgroup(self._cgroups, f"{CGROUP}/{LEAVING}")
        """Earlier proxies, which take no new connections and end with their last one."""
        self._network = Network()
        self._peers: tuple[RemotePeer, ...] = ()
        self._trouble = "it has not begun yet"
        self._is_served = self._was_on = False
        self._proxy_digest = ""

    # --- RemoteServing --------------------------------------------------------------------------------------------

    def ability(self) -> RemoteAbility:
        """See RemoteServing.ability."""
        if self._trouble:
            return RemoteAbility()
        return RemoteAbility(
            address=self._config.remote_address if self._is_served and self._config.serves_gpus else "",
            client=self._config.uses_remote_gpus,
            network=self._network.told,
        )

    async def serve(self, uid: str, grant_id: str, container: str, share: ContainerGrant, peer_node: str) -> str:
        """See RemoteServing.serve."""
        return await self._serving.serve(uid, grant_id, container, share, peer_node)

    def find(self, uid: str, grant_id: str, container: str, peer_node: str) -> bool:
        """See RemoteServing.find."""
        return self._serving.find(uid, grant_id, container, peer_node)

    async def end(self, uid: str, grant_id: str, container: str) -> None:
        """See RemoteServing.end."""
        await self._serving.end(uid, grant_id, container)

    def running(self) -> frozenset[tuple[str, str]]:
        """See RemoteServing.running."""
        return self._serving.running()

    async def client_edits(
        self, uid: str, grant_id: str, container: str, share: ContainerGrant, address: str
    ) -> ContainerEdits:
        """See RemoteServing.client_edits."""
        return await self._clients.edits(uid, grant_id, container, share, address)

    async def client_ended(self, uid: str, container: str) -> None:
        """See RemoteServing.client_ended."""
        await self._clients.ended(uid, container)

    # --- proxies and network --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts what this node needs, and keeps it running. What an earlier agent has started goes on."""
        await self._look()
        self._ctx.spawn(self._keep(), name="remote")
        if self._config.uses_remote_gpus:
            self._ctx.spawn(self._measure(), name="network")

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            before = self.ability()
            await self._look()
            if self.ability() != before:
                await self._say()

    async def _look(self) -> None:
        """Finds out what this node can do, starts the proxies that do not run, and ends those that nothing needs."""
        serves = self._config.serves_gpus or bool(self._serving.running())
        is_on = serves or self._config.uses_remote_gpus or self._clients.any()
        self._trouble = await self._identity.obtain() if is_on else OFF
        not_served = ""
        if not serves:
            self._is_served = False
            await self._tidy(self._end_proxies)
        elif not self._trouble:  # also for what is left of a node that serves no more
            try:
                await self._serve_proxy()
            except (OSError, ValueError) as error:
                self._is_served, not_served = False, f"no GPUs are served to other nodes: {error}"
        failed = [] if self._trouble else self._serving.renew_secrets()
        failed += await self._clients.keep(self._containers)
        for why in failed:
            self._ctx.log.warning("way_to_gpu_not_restored", why=why)
        await self._tidy(self._shorten_logs)
        if is_on or self._was_on:
            detail = f"no GPUs over the network: {self._trouble}" if is_on and self._trouble else not_served
            self._ctx.health.set("remote", ok=True, detail=detail)
        self._was_on = is_on

    async def _tidy(self, work: Callable[[], Awaitable[None]]) -> None:
        """What must not keep the node from serving."""
        try:
            await work()
        except OSError as error:
            self._ctx.log.warning("remote_not_tidied", why=str(error))

    async def _shorten_logs(self) -> None:
        await asyncio.to_thread(programs.shorten_logs, self._folder)

    async def _end_proxies(self) -> None:
        """Raises OSError if they stay."""
        folder = self._folder / PROXY
        if folder.exists():  # else this node has had none
            for proxy in (self._proxy, self._leaving):
                await proxy.end(END_S)
            shutil.rmtree(folder)

    async def _serve_proxy(self) -> None:
        """Starts the proxy before this node's servers, unless that of this image runs with these settings. Raises
        OSError."""
        if not self._config.remote_address:
            raise ProgramError("the setting remote_address is empty: where do other nodes reach this one?")
        self._serving.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self._folder / PROXY
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = (
            *self._in_host_network, str(self._build / programs.PROXY), "serve", self._config.remote_address,
            str(self._serving.folder), *self._certificates.arguments,
        )  # fmt: skip
        wanted, log = "\0".join((*command, self._digest())), folder / programs.LOG
        kept = folder / "command"
        if self._proxy.pids() and kept.exists() and kept.read_text() == wanted:
            self._is_served = True
            return
        self._is_served = False
        await self._retire(folder)
        log.unlink(missing_ok=True)
        await programs.start(
            command,
            folder=folder,
            cgroup=self._proxy,
            is_up=lambda: log.exists() and b"ready\n" in log.read_bytes(),
            within_s=START_S,
        )
        kept.write_text(wanted)
        self._is_served = True

    def _digest(self) -> str:
        """Of the proxy of this agent's image, which is another one after an upgrade. Raises OSError."""
        if not self._proxy_digest:
            self._proxy_digest = hashlib.sha256((self._build / programs.PROXY).read_bytes()).hexdigest()
        return self._proxy_digest

    async def _retire(self, folder: Path) -> None:
        """Has the proxy that runs take no more connections, so that its port is free; those that it has go on. One that
        does not understand that ends. Raises OSError if it stays."""
        pids = [pid for pid in self._proxy.pids() if self._leaving.take(pid)]
        log, leaving = folder / programs.LOG, folder / LEAVING / programs.LOG
        leaving.unlink(missing_ok=True)
        if pids and log.exists():
            leaving.parent.mkdir(exist_ok=True)
            log.replace(leaving)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + END_S
        while self._leaving.pids() & set(pids) and LISTENS_NO_MORE not in _read(leaving):
            late_s = asyncio.get_running_loop().time() - deadline
            if late_s > END_S:
                raise OSError(f"the proxy of another image does not end: {sorted(pids)}")
            if late_s > 0:
                for pid in self._leaving.pids() & set(pids):  # and no other, which has connections
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(LOOK_S)
        await self._proxy.end(END_S)

    async def _measure(self) -> None:
        while True:
            if await self._measure_all():  # once a round: each change is an inventory, which placement reads
                await self._say()
            await asyncio.sleep(self._config.remote_probe_s)

    async def _measure_all(self) -> bool:
        """Measures one node after the other, so that the traffic is bounded whatever the number of nodes. Whether what
        is told has changed."""
        peers = await self._ask_for_peers()
        changed = False
        if peers is not None:
            self._peers = peers
            changed = self._network.keep_only([peer.node for peer in peers])
        for peer in self._peers:
            try:
                changed |= self._network.measured(peer.node, await self._probe(peer))
            except (OSError, ValueError) as error:
                changed |= self._network.not_reached(peer.node)
                self._ctx.log.info("network_not_measured", node=peer.node, why=str(error))
        return changed

    async def _ask_for_peers(self) -> tuple[RemotePeer, ...] | None:
        """The nodes that placement wants measured; None where it does not answer, or does not know yet."""
        try:
            asked = encode(RemotePeersQuery(node=self._config.node))
            told = decode(await self._ctx.bus.request(REMOTE_PEERS.subject, asked), RemotePeersAnswer)
        except (BusError, ContractError) as error:
            self._ctx.log.info("peers_unknown", why=str(error))
            return None
        if told.error:
            self._ctx.log.info("peers_unknown", why=told.error)
            return None
        return told.peers

    async def _probe(self, peer: RemotePeer) -> NetworkLink:
        """Raises ProgramError, and ValueError on figures that no network has."""
        process = await asyncio.create_subprocess_exec(
            *self._in_host_network, str(self._build / programs.PROXY), "probe", peer.address,
            certificate_name(peer.node), str(PROBE_ROUNDS), str(PROBE_MIB), *self._certificates.arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(PROBE_S):
                out, errors = await process.communicate()
        except TimeoutError:
            raise ProgramError(f"the probe has not ended within {PROBE_S:g} s") from None
        finally:
            if process.returncode is None:
                await child.end(process)
        if process.returncode:
            raise ProgramError(errors.decode(errors="replace").strip())
        measured = msgspec.json.decode(out, type=Measured)
        return NetworkLink(rtt_us=max(1, round(measured.rtt_us)), mib_s=max(1, round(measured.mib_s)))


def _read(log: Path) -> bytes:
    try:
        return log.read_bytes()
    except OSError:
        return b""
