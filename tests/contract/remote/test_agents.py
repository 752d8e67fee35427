"""Two whole agents: the grant of a pod on one node with a GPU of the other, from the order to the release.

Real NATS, gRPC of a fake kubelet, fake NVML and driver, real processes, cgroups and TLS between the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.node_agent.processes.own_cgroup import OwnCgroup
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.node_commands import Accepted, NodeGrant, NodeRelease, Released, RemoteEnd
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.names import certificate_name
from tests.remote.nodes import Pki, free_port
from tests.support import native
from tests.support.enforcement import GPU, NVML, become, prove
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, edits, pod, uid
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and mount namespaces need root"),
    pytest.mark.xdist_group("remote-ends"),
]
KEY = "k" * 48


class Site:
    def __init__(self, bus: NatsBus, host: Path, other: Path, kubelet: FakeKubelet, address: str) -> None:
        self.bus, self.host, self.other, self.kubelet, self.address = bus, host, other, kubelet, address
        self.released: list[tuple[str, str]] = []

    async def order(self, name: str, *, node: str, memory_mib: int = 64) -> Accepted:
        role = "serving" if node == "n1" else "client"
        share = GpuShare(node="n1", uuid=GPU, memory_mib=memory_mib, compute_milli=300)
        container = ContainerGrant(strategy="remote", gpus=(share,), serving="interposer")
        sent = NodeGrant(
            term=1,
            uid=uid(name),
            namespace="team",
            name=name,
            grant=Grant(grant_id=f"g-{name}", term=1, containers={"main": container}),
            remote=RemoteEnd(
                role=role, peer="n2" if node == "n1" else "n1", address=self.address if role == "client" else ""
            ),
        )
        return decode(await self.bus.request(subjects.node_command(node, "grant"), encode(sent)), Accepted)

    async def release(self, name: str, node: str) -> None:
        sent = NodeRelease(term=1, uid=uid(name), grant_id=f"g-{name}")
        assert decode(await self.bus.request(subjects.node_command(node, "release"), encode(sent)), Accepted).ok

    async def start(self, name: str) -> dict[str, str]:
        """Starts the pod's container on n2; returns the environment of its programs, outside of a container."""
        await self.kubelet.sees_slots()
        one = pod(name)
        await self.kubelet.admit(one)
        found = edits(self.other, await self.kubelet.start_container(one))
        mounts = {mount["containerPath"]: mount["hostPath"] for mount in found["mounts"]}
        assert not found.get("deviceNodes")
        library = mounts["/run/kerf/libkerf-remote.so"]
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(Path(library).parent),
            "KERF_TEST_DRIVER": library,
            "KERF_REMOTE_SOCKET": f"{mounts['/run/kerf/remote']}/socket",
        }

    def servers(self, name: str) -> list[int]:
        roots = Path("/sys/fs/cgroup").glob(f"*/kerf-remote/pod{uid(name)}/*/cgroup.procs")
        return sorted({int(pid) for file in roots for pid in file.read_text().split()})


async def run(environment: dict[str, str], *command: str) -> tuple[int, list[int]]:
    program = await asyncio.create_subprocess_exec(
        str(native.BUILD / "programs" / "remote"), *command, env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(program.communicate(), 60)
    return program.returncode or 0, [int(word) for word in out.split()]


@pytest.fixture
async def site(nats: EmbeddedServer, bus: NatsBus, host: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    build = native.built("enforcement")
    native.built("programs")
    become(host, NVML)
    prove(host, build)
    pki, port = Pki(host / "pki"), free_port()
    async with contextlib.AsyncExitStack() as stack:
        # Outside of what the agent has as the host's files: of these a server sees the driver's alone.
        world = str(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kerf-"))) / "world")
        monkeypatch.setenv("KERF_FAKE_CUDA", world)
        other = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kerf-")))
        (other / "boot_id").write_text("boot-2\n")
        for node, folder in (("n1", host), ("n2", other)):
            files = folder / "remote"
            files.mkdir()
            certificate, key = pki.node(certificate_name(node))
            (files / "tls.crt").write_bytes(certificate.read_bytes())
            (files / "tls.key").write_bytes(key.read_bytes())
            (files / "ca.crt").write_bytes(pki.authority.read_bytes())
            (files / "grants.key").write_text(KEY)
        kubelet, first = FakeKubelet(other / "kubelet"), FakeKubelet(host / "kubelet")
        for one in (kubelet, first):
            await one.start()
            stack.push_async_callback(one.stop)
        common: dict[str, Any] = {
            "interposer_dir": str(build),
            "libcuda": str(build / "libcuda.so.1"),
            "remote_dir": str(build / "remote"),
            "cgroup_dir": "/sys/fs/cgroup",
            "poll_s": 0.1,
            "remote_server_environment": {"KERF_FAKE_CUDA": world, "KERF_REMOTE_UID": "0"},
            "enforce": "proven",
        }
        address = f"127.0.0.1:{port}"
        serving = {"remote_serving_nodes": ("n1",), "remote_address": address, "remote_files": str(host / "remote")}
        made = Site(bus, host, other, kubelet, address)

        async def given_back(incoming: Any) -> None:
            made.released.append((subjects.sender(incoming.subject), decode(incoming.payload, Released).grant_id))

        await bus.subscribe(subjects.RELEASES_ALL, given_back)
        await stack.enter_async_context(agent(nats, host, **common, **serving))
        await stack.enter_async_context(
            agent(nats, other, **common, node="n2", remote_client_nodes=("n2",), remote_files=str(other / "remote"))
        )
        await eventually(lambda: offers(bus, "n1", "address"), what="n1 serves")
        await eventually(lambda: offers(bus, "n2", "client"), what="n2 is a client")
        yield made
        for name in ("a", "b"):
            for node in ("n2", "n1"):
                with contextlib.suppress(AssertionError):
                    await made.release(name, node)
            await eventually(lambda name=name: not made.servers(name))
        await _end_proxies()


async def _end_proxies() -> None:
    """What outlives agents."""
    root = Path("/sys/fs/cgroup")
    clients = await asyncio.to_thread(lambda: {folder.name for folder in root.glob("*/kerf-remote/clients/*")})
    for name in ("proxy", *(f"clients/{client}" for client in clients)):
        await OwnCgroup(root, f"kerf-remote/{name}").end(10)


async def offers(bus: NatsBus, node: str, what: str) -> bool:
    kept = await bus.kv(subjects.KV_NODES).get(subjects.token(node))
    return kept is not None and bool(getattr(decode(kept.value, Inventory).remote, what))


async def test_a_container_of_one_node_uses_its_slice_of_the_other_nodes_gpu(site: Site) -> None:
    assert (await site.order("a", node="n1")).ok
    assert (await site.order("a", node="n2")).ok
    await eventually(lambda: site.servers("a"))
    environment = await site.start("a")
    assert await run(environment, "limit", "2048") == (0, [32, 2])
    assert await run(environment, "mix", "20", "2") == (0, await _local(site, "mix", "20", "2"))


async def test_the_release_ends_the_server_and_frees_the_gpu(site: Site) -> None:
    for node in ("n1", "n2"):
        assert (await site.order("a", node=node)).ok
    await eventually(lambda: site.servers("a"))
    environment = await site.start("a")
    assert (await run(environment, "info"))[0] == 0
    await site.release("a", "n1")
    await eventually(lambda: ("n1", "g-a") in site.released)
    assert site.servers("a") == []
    assert (await run(environment, "info"))[0] != 0


async def test_a_killed_server_is_started_again(site: Site) -> None:
    for node in ("n1", "n2"):
        assert (await site.order("a", node=node)).ok
    await eventually(lambda: site.servers("a"))
    environment = await site.start("a")
    await eventually(lambda: _answers(environment), within_s=30)
    before = site.servers("a")
    for pid in before:
        with contextlib.suppress(ProcessLookupError):  # a worker of a program that has just ended
            os.kill(pid, signal.SIGKILL)
    await eventually(lambda: site.servers("a") and not set(site.servers("a")) & set(before), within_s=30)
    await eventually(lambda: _answers(environment), within_s=30)
    assert ("n1", "g-a") not in site.released


async def test_a_container_does_not_start_by_the_serving_nodes_grant(site: Site) -> None:
    """The pod is of n2: nothing of it starts on n1, and without its grant nothing starts on n2 either."""
    assert (await site.order("a", node="n1")).ok
    with pytest.raises(grpc.aio.AioRpcError, match="no grant"):
        await site.start("a")


async def test_the_gate_counts_what_is_served(site: Site) -> None:
    """A second server beyond the GPU's memory is refused by the device gate, whatever placement believes."""
    assert (await site.order("a", node="n1", memory_mib=3000)).ok
    await eventually(lambda: site.servers("a"))
    assert (await site.order("b", node="n1", memory_mib=2000)).ok
    await site.release("a", "n1")
    await eventually(lambda: site.servers("b"), within_s=30, what="there is room for it now")
    assert site.servers("a") == []


async def _answers(environment: dict[str, str]) -> bool:
    return (await run(environment, "info"))[0] == 0


async def _local(site: Site, *command: str) -> list[int]:
    enforcement = native.BUILD / "enforcement"
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(enforcement),
                   "KERF_TEST_DRIVER": str(enforcement / "libcuda.so.1"),
                   "KERF_FAKE_CUDA": str(site.other / "world")}  # fmt: skip
    return (await run(environment, *command))[1]
