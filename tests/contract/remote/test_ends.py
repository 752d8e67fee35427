"""Both ends of a remote GPU as the node agents make them: the server in its slice, and the way of the container to it.

Real processes, cgroups, mount namespaces, the interposer and the proxies, on the fake driver. Needs root.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.node_agent import messages as m
from services.node_agent.cdi.spec import ContainerEdits, Mount
from services.node_agent.processes.own_cgroup import OwnCgroup
from services.node_agent.processes.owner import owner_of
from services.node_agent.remote import clients, serving
from services.node_agent.remote.clients import Clients
from services.node_agent.remote.programs import Certificates, start
from services.node_agent.remote.serving import Serving
from services.node_agent.strategies import base
from services.node_agent.strategies.install import install
from services.node_agent.strategies.interposer import Interposer
from services.node_agent.strategies.rules import Policy
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import slice_of
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.names import certificate_name
from shared.model.strategies import registered
from tests.interposer.node import MIB, UUID
from tests.remote.nodes import Pki, free_port
from tests.support import native
from tests.support.waiting import eventually

UID, OTHER = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"
KEY = b"k" * 32
OUT_OF_MEMORY = 2

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and mount namespaces need root"),
    pytest.mark.xdist_group("remote-ends"),
]


def share_of(memory_mib: int) -> ContainerGrant:
    gpu = GpuShare(node="gpu", uuid=UUID, memory_mib=memory_mib, compute_milli=300)
    return ContainerGrant(strategy="interposer", gpus=(gpu,))


class Nodes:
    """The node `gpu`, which serves, and the node `client`, on one machine."""

    def __init__(self, folder: Path) -> None:
        for name in native.SOURCES:
            native.built(name)
        build = native.BUILD / "enforcement"
        self.folder, self.pki, self.port = folder, Pki(folder / "pki"), free_port()
        self.registry = SliceRegistry(folder / "slices", Policy(), time.monotonic_ns)
        # The host's files as in the agent's pod, with the driver among them.
        self.libcuda = folder / "host" / "usr" / "lib" / "libcuda.so.1"
        self.libcuda.parent.mkdir(parents=True)
        shutil.copyfile(build / "libcuda.so.1", self.libcuda)
        (folder / "host" / "proc").mkdir()
        (folder / "host" / "proc" / "of-others").touch()
        library = install(build, folder / "lib", "build")
        tools = base.NodeTools(
            registry=self.registry, library=library, offer=lambda: base.Offer(ok=True), clock=time.monotonic_ns
        )
        self.driver = Interposer(registered()["interposer"], tools)
        self.serving = Serving(
            folder / "serving",
            build=build / "remote",
            cgroups=Path("/sys/fs/cgroup"),
            key=lambda: KEY,
            libcuda=lambda: str(self.libcuda),
            enforced=self._enforced,
            grant_of=lambda uid: Grant(grant_id=f"g-{uid}", term=1, priority=len(uid)),
            memory_mib=512,
            hidden=(str(folder / "pki"),),
            host=folder / "host",
            environment={"KERF_FAKE_CUDA": str(folder / "world"), "KERF_REMOTE_UID": "0"},
        )
        self.clients = Clients(
            folder / "clients",
            build=build / "remote",
            library_dir=folder / "lib",
            cgroups=Path("/sys/fs/cgroup"),
            key=lambda: KEY,
            certificates=self.certificates("client"),
        )
        self._proxy = OwnCgroup(Path("/sys/fs/cgroup"), f"kerf-remote/test-{os.getpid()}")

    def certificates(self, node: str) -> Certificates:
        certificate, key = self.pki.node(certificate_name(node))
        return Certificates(certificate=certificate, key=key, authority=self.pki.authority)

    async def start(self) -> None:
        proxy = native.BUILD / "enforcement" / "remote" / "proxy"
        (self.folder / "proxy").mkdir()
        log = self.folder / "proxy" / "log"
        await start(
            [
                str(proxy),
                "serve",
                f"127.0.0.1:{self.port}",
                str(self.serving.folder),
                *self.certificates("gpu").arguments,
            ],
            folder=log.parent,
            cgroup=self._proxy,
            is_up=lambda: log.exists() and "ready" in log.read_text(),
            within_s=20,
        )

    async def close(self) -> None:
        for uid in (UID, OTHER):
            await self.serving.end(uid, "", "main")
            await self.clients.ended(uid, "main")
        await self._proxy.end(10)
        self.registry.close()

    async def _enforced(self, order: m.HandOver, grant: Grant | None) -> ContainerEdits:
        slice_ = slice_of(order.uid, order.container, order.share, grant, "gpu")
        self.driver.prepare(slice_)
        return self.driver.edits(slice_)

    async def connect(self, uid: str = UID, grant_id: str = "g") -> dict[str, str]:
        """The environment of the container's programs, outside of a container."""
        share = ContainerGrant(strategy="interposer", gpus=share_of(1).gpus)
        edits = await self.clients.edits(uid, grant_id, "main", share, f"127.0.0.1:{self.port}")
        by_path = {mount.container_path: mount.host_path for mount in edits.mounts}
        library = by_path["/run/kerf/libkerf-remote.so"]
        preloads = await asyncio.to_thread(Path(by_path["/etc/ld.so.preload"]).read_text)
        assert preloads == "/run/kerf/libkerf-remote.so\n"
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(Path(library).parent),
            "KERF_REMOTE_SOCKET": f"{by_path['/run/kerf/remote']}/socket",
            "KERF_TEST_DRIVER": library,
        }

    async def run(self, environment: dict[str, str], *command: str) -> tuple[int, list[int], str]:
        program = await asyncio.create_subprocess_exec(
            str(native.BUILD / "programs" / "remote"), *command, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, err = await asyncio.wait_for(program.communicate(), 60)
        return program.returncode or 0, [int(word) for word in out.split()], err.decode()

    def ways(self) -> list[Path]:
        return list((self.folder / "clients").iterdir())

    def cgroups(self, uid: str) -> list[Path]:
        return list(Path("/sys/fs/cgroup").glob(f"*/kerf-remote/pod{uid}"))

    def processes(self, uid: str) -> frozenset[int]:
        roots = Path("/sys/fs/cgroup").glob(f"*/kerf-remote/pod{uid}/*/cgroup.procs")
        return frozenset(int(pid) for file in roots for pid in file.read_text().split())


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    # The path of a socket has at most 107 bytes, and pytest's folders have long names.
    with tempfile.TemporaryDirectory(prefix="kerf-") as folder:
        made = Nodes(Path(folder))
        await made.start()
        yield made
        await made.close()


async def test_a_container_uses_the_other_nodes_gpu_within_its_slice(nodes: Nodes) -> None:
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    environment = await nodes.connect()
    assert await nodes.run(environment, "limit", "2048") == (0, [32, OUT_OF_MEMORY], "")
    (used,) = nodes.driver.observe((UID, "main"))
    assert (used.memory_limit_mib, used.refused > 0) == (64, True)


async def test_the_servers_processes_count_as_the_pods(nodes: Nodes) -> None:
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    pids = nodes.processes(UID)
    assert pids
    owners = [owner_of(pid) for pid in pids]
    assert {None if owner is None else owner.pod_uid for owner in owners} == {UID}


async def test_a_server_sees_nothing_of_the_agent(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program on another node may take it over: it has no network, no process but its own, none of the agent's
    variables, and none of its keys."""
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "1")
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    _sees_nothing(max(nodes.processes(UID)), nodes.folder)


def _sees_nothing(pid: int, folder: Path) -> None:
    proc = Path(f"/proc/{pid}")
    assert b"remote/server" in proc.joinpath("cmdline").read_bytes()
    assert b"SECRET_OF_THE_AGENT" not in proc.joinpath("environ").read_bytes()
    assert [line.split(":")[0].strip() for line in proc.joinpath("net/dev").read_text().splitlines()[2:]] == ["lo"]
    assert list((folder / "pki").iterdir())
    assert list(Path(f"{proc}/root{folder}/pki").iterdir()) == []
    for kind in ("pid", "net", "ipc", "mnt"):
        assert (proc / "ns" / kind).readlink() != Path(f"/proc/self/ns/{kind}").readlink()


async def test_of_the_hosts_files_a_server_sees_the_drivers_alone(nodes: Nodes) -> None:
    """All servers have one user: by the host's /proc one could read and write the memory of another tenant's."""
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    assert (await nodes.run(await nodes.connect(), "limit", "2048"))[:2] == (0, [32, OUT_OF_MEMORY])
    assert _seen_of_the_host(nodes) == ["usr", "usr/lib", "usr/lib/libcuda.so.1"]
    assert (nodes.folder / "host" / "proc" / "of-others").exists()


def _seen_of_the_host(nodes: Nodes) -> list[str]:
    host = Path(f"/proc/{max(nodes.processes(UID))}/root{nodes.folder}/host")
    return sorted(str(path.relative_to(host)) for path in host.rglob("*"))


async def test_a_servers_host_memory_and_tasks_are_limited(nodes: Nodes) -> None:
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    assert _figure("memory", "memory.limit_in_bytes") == 512 * MIB
    assert _figure("pids", "pids.max") == 8192


def _figure(hierarchy: str, name: str) -> int:
    (file,) = Path("/sys/fs/cgroup").glob(f"{hierarchy}/kerf-remote/pod{UID}/*/{name}")
    return int(file.read_text())


async def test_a_server_that_cannot_be_put_into_its_cgroup_does_not_run(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would count as ended while it uses the GPU."""
    monkeypatch.setattr(OwnCgroup, "make", lambda _: "/nowhere")
    monkeypatch.setattr(OwnCgroup, "limit", lambda *_: None)
    why = await nodes.serving.serve(UID, "g", "main", share_of(64), "client")
    assert "cgroup of its own" in why
    await eventually(lambda: not _running(str(nodes.folder)))


async def test_a_server_that_runs_is_not_started_again_also_by_a_later_agent(nodes: Nodes) -> None:
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    before = nodes.processes(UID)
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    assert nodes.processes(UID) == before
    assert nodes.serving.running() == {(UID, "main")}


async def test_what_has_ended_runs_no_more_and_lets_nobody_in(nodes: Nodes) -> None:
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    environment = await nodes.connect()
    holds = await asyncio.create_subprocess_exec(
        str(native.BUILD / "programs" / "remote"), "hold", "8", env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert holds.stdout is not None
    assert await holds.stdout.readline() == b"1\n"
    await nodes.serving.end(UID, "g", "main")
    assert (nodes.processes(UID), nodes.serving.running()) == (frozenset(), frozenset())
    assert nodes.cgroups(UID) == []
    out, err = await asyncio.wait_for(holds.communicate(b""), 60)
    assert (out, b"is gone" in err) == (b"46\n", True)
    status, _, _ = await nodes.run(environment, "info")
    assert status != 0


async def test_another_grant_of_the_same_pod_does_not_let_the_earlier_one_in(nodes: Nodes) -> None:
    assert await nodes.serving.serve(UID, "earlier", "main", share_of(64), "client") == ""
    environment = await nodes.connect(grant_id="earlier")
    await nodes.serving.end(UID, "earlier", "main")
    assert await nodes.serving.serve(UID, "later", "main", share_of(64), "client") == ""
    status, _, _ = await nodes.run(environment, "info")
    assert status != 0
    assert (await nodes.run(await nodes.connect(grant_id="later"), "info"))[0] == 0


async def test_a_server_that_cannot_start_says_why_and_leaves_nothing(nodes: Nodes, monkeypatch: Any) -> None:
    monkeypatch.setattr(nodes.serving, "_libcuda", lambda: "/nowhere/libcuda.so.1")
    # The server begins without touching the driver; its programs find out. So break the program itself.
    monkeypatch.setattr(nodes.serving, "_build", Path("/nowhere"))
    why = await nodes.serving.serve(UID, "g", "main", share_of(64), "client")
    assert "/nowhere/server" in why
    assert not nodes.serving.running()
    assert list(nodes.serving.folder.iterdir()) == []


async def test_a_server_that_does_not_end_is_not_forgotten(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its program hangs in the driver: its GPU is in use until it has ended."""
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""

    async def stuck(*_: object) -> None:
        raise OSError("2 processes do not end")

    with monkeypatch.context() as patch:
        patch.setattr(OwnCgroup, "end", stuck)
        patch.setattr(serving, "_listens", lambda _: False)
        assert "do not end" in await nodes.serving.serve(UID, "g", "main", share_of(64), "client")
        assert nodes.serving.running() == {(UID, "main")}
        with pytest.raises(OSError, match="do not end"):
            await nodes.serving.end(UID, "g", "main")
    await nodes.serving.end(UID, "g", "main")
    assert (nodes.serving.running(), nodes.cgroups(UID)) == (frozenset(), [])


async def test_a_servers_cgroup_is_there_before_its_slice(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of the driver's are set for a cgroup; where the slice cannot be made none is left."""
    seen: list[int] = []

    async def enforced(order: m.HandOver, grant: Grant | None) -> ContainerEdits:
        seen.append(len(nodes.cgroups(UID)))
        raise ValueError("no such limit")

    monkeypatch.setattr(nodes.serving, "_enforced", enforced)
    assert "no such limit" in await nodes.serving.serve(UID, "g", "main", share_of(64), "client")
    assert seen[0] > 0
    assert nodes.cgroups(UID) == []


async def test_two_pods_have_a_server_and_a_limit_each(nodes: Nodes) -> None:
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    assert await nodes.serving.serve(OTHER, "g", "main", share_of(32), "client") == ""
    assert (await nodes.run(await nodes.connect(UID), "limit", "2048"))[1] == [32, OUT_OF_MEMORY]
    assert (await nodes.run(await nodes.connect(OTHER), "limit", "2048"))[1] == [16, OUT_OF_MEMORY]
    assert nodes.serving.running() == {(UID, "main"), (OTHER, "main")}


async def test_a_proxy_of_a_container_that_ends_is_started_again(nodes: Nodes) -> None:
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    environment = await nodes.connect()
    (folder,) = nodes.ways()
    await OwnCgroup(Path("/sys/fs/cgroup"), f"kerf-remote/clients/{folder.name}").end(10)
    assert (await nodes.run(environment, "info"))[0] != 0
    assert await nodes.clients.keep(lambda: {(UID, "main")}) == []
    assert (await nodes.run(environment, "info"))[0] == 0


async def test_a_container_whose_server_does_not_come_does_not_start(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "REACH_S", 0.3)
    with pytest.raises(m.SliceNotReady, match="its server has not answered"):
        await nodes.connect()


async def test_a_container_waits_for_its_server(nodes: Nodes) -> None:
    connecting = asyncio.create_task(nodes.connect())
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    assert (await nodes.run(await connecting, "info"))[0] == 0


async def test_after_the_container_has_ended_nothing_of_its_way_is_left(nodes: Nodes) -> None:
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    await nodes.connect()
    (folder,) = nodes.ways()
    cgroup = OwnCgroup(Path("/sys/fs/cgroup"), f"kerf-remote/clients/{folder.name}")
    assert cgroup.pids()
    await nodes.clients.ended(UID, "main")
    assert not folder.exists()
    assert not cgroup.pids()


async def test_the_way_of_a_container_that_ended_unseen_is_taken_down(nodes: Nodes) -> None:
    """The agent was killed between the end of the container and that of its proxy."""
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    await nodes.connect()
    (folder,) = nodes.ways()
    assert await nodes.clients.keep(lambda: {(OTHER, "main")}) == []
    assert not folder.exists()


async def test_the_way_of_a_container_that_starts_again_meanwhile_stays(nodes: Nodes) -> None:
    """Another proxy before it can take 10 s to end; what was known of the containers then is outdated."""
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    await nodes.connect()
    (folder,) = nodes.ways()
    leases: set[tuple[str, str]] = set()
    async with nodes.clients._lock(folder):
        keeping = asyncio.create_task(nodes.clients.keep(lambda: leases))
        await asyncio.sleep(0)  # it waits for the folder
        leases.add((UID, "main"))
    assert await keeping == []
    assert (folder / "way").exists()


async def test_a_way_is_taken_down_once_when_two_notice_its_end(nodes: Nodes) -> None:
    """The agent's check of all ways comes at any moment."""
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    await nodes.connect()
    (folder,) = nodes.ways()
    assert await asyncio.gather(nodes.clients.ended(UID, "main"), nodes.clients.keep(tuple)) == [None, []]
    assert not folder.exists()


async def test_without_certificates_a_container_does_not_start(nodes: Nodes) -> None:
    (nodes.folder / "pki" / "client.nodes.kerf.dev.key").unlink()
    with pytest.raises(m.SliceNotReady, match=r"there is no .*client\.nodes\.kerf\.dev\.key"):
        await nodes.connect()


async def test_a_killed_server_is_seen(nodes: Nodes) -> None:
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    for pid in nodes.processes(UID):
        with contextlib.suppress(ProcessLookupError):  # its parent's end was its own
            os.kill(pid, 9)
    await eventually(lambda: not nodes.serving.running())
    assert await nodes.serving.serve(UID, "g", "main", share_of(64), "client") == ""
    assert (await nodes.run(await nodes.connect(), "info"))[0] == 0


async def test_a_slice_that_needs_more_than_the_interposer_is_not_served(nodes: Nodes, monkeypatch: Any) -> None:
    """Such as one of MPS: its server would be no client of the daemon, and its limits would not hold."""
    pipe = Mount(host_path="/nowhere", container_path="/tmp/nvidia-mps")

    async def enforced(order: m.HandOver, grant: Grant | None) -> ContainerEdits:
        return ContainerEdits(mounts=(pipe,))

    monkeypatch.setattr(nodes.serving, "_enforced", enforced)
    assert "/tmp/nvidia-mps" in await nodes.serving.serve(UID, "g", "main", share_of(64), "client")
    assert not nodes.serving.running()


def _running(word: str) -> list[int]:
    """The servers with this word in their environment."""
    found = []
    for proc in Path("/proc").iterdir():
        if proc.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                if (
                    b"remote/server" in (proc / "cmdline").read_bytes()
                    and word.encode() in (proc / "environ").read_bytes()
                ):
                    found.append(int(proc.name))
    return found
