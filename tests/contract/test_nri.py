"""NRI as containerd speaks it: byte for byte as it was recorded, and over a socket that comes and goes, with a whole agent."""

from __future__ import annotations

import asyncio
import gzip
import socket
from pathlib import Path

import pytest

from services.node_agent.handover.nri.affinity import Allowed
from services.node_agent.handover.nri.frames import FramingError
from services.node_agent.handover.nri.plugin import CpuPlugin
from services.node_agent.handover.nri.session import talk
from services.node_agent.nri_api import nri_pb2 as pb
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.model.gpu import Gpu
from shared.service import Context
from tests.support.fake_kubelet import FakeKubelet
from tests.support.fake_nri import FakeRuntime
from tests.support.kubelet_agent import agent, grant, uid
from tests.support.waiting import eventually

RECORDED = Path(__file__).resolve().parents[1] / "data" / "nri"
LATE = (Gpu(uuid="GPU-5", index=5, model="H100", memory_mib=1, cpus="1"),)
TWO_CPUS = Allowed(cpus=frozenset({0, 1}), mems=frozenset({0}))


async def _said(written: bytes, size: int) -> tuple[bytes, list[str]]:
    """What the agent writes to a runtime that writes this, so many bytes at a time, and what became of containers with GPUs."""
    outcomes: list[str] = []
    plugin = CpuPlugin(
        # Of the recorded pods, this one has a GPU that is still to be given.
        gpus_of=lambda uid, container: LATE,
        allowed=lambda group: TWO_CPUS,
        memory=False,
        decided=lambda outcome, took_s: outcomes.append(outcome),
    )
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    far_reader, far_writer = await asyncio.open_unix_connection(sock=theirs)
    talking = asyncio.create_task(talk(reader, writer, "kerf", "40", plugin.answer))
    try:
        for at in range(0, len(written), size):
            far_writer.write(written[at : at + size])
            await far_writer.drain()
        far_writer.write_eof()
        await talking
        writer.close()
        return await far_reader.read(), outcomes
    finally:
        talking.cancel()
        writer.close()
        far_writer.close()


@pytest.mark.parametrize("size", [11, 4096, 1 << 20])
async def test_what_containerd_wrote_is_answered_as_containerd_took_it(size: int) -> None:
    """Registration, configuration, what runs, and a container that is created, resized beyond its CPUs and stopped."""
    runtime, plugin = (
        gzip.decompress((RECORDED / f"containerd-2.4.2-{side}.bin.gz").read_bytes()) for side in ("runtime", "plugin")
    )
    assert await _said(runtime, size) == (plugin, ["near", "widened"])


async def test_bytes_that_are_not_nri_end_the_connection() -> None:
    with pytest.raises(FramingError):
        await _said(b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n", 1 << 20)


def _nri(host: Path) -> Path:
    return host / "run" / "nri" / "nri.sock"


def _node_of_four_cpus(host: Path, name: str) -> None:
    """Its first GPU is beside the first two; the pod's group is there before its containers are."""
    machine = host / "nvml"
    machine.write_text(machine.read_text() + "cpus 0 3\ncpus 1 c\n")
    group = host / "cgroup" / "kubepods" / f"pod{uid(name)}"
    group.mkdir(parents=True)
    (host / "cgroup" / "cgroup.controllers").touch()
    (host / "cgroup" / "cgroup.procs").touch()
    for what, numbers in (("cpus", "0-3"), ("mems", "0")):
        (group / f"cpuset.{what}.effective").write_text(numbers)


async def _created(runtime: FakeRuntime, name: str, container: str = "main") -> str:
    request = pb.CreateContainerRequest(
        pod=pb.PodSandbox(uid=uid(name), linux=pb.LinuxPodSandbox(cgroup_parent=f"/kubepods/pod{uid(name)}")),
        container=pb.Container(id="c", name=container),
    )
    reply = await runtime.ask("CreateContainer", request)
    assert reply.status.code == 0
    return pb.CreateContainerResponse.FromString(reply.payload).adjust.linux.resources.cpu.cpus


def _detail(ctx: Context) -> str:
    """What its health says of NRI, without which a node is as ready as with it."""
    part = ctx.health.report()["parts"].get("nri", {"ok": True, "detail": "not asked yet"})
    assert part["ok"]
    return str(part["detail"])


async def test_a_granted_container_gets_the_cpus_beside_its_gpu(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    _node_of_four_cpus(host, "granted")
    runtime = FakeRuntime(_nri(host))
    await runtime.start()
    async with agent(nats, host):
        await kubelet.sees_slots()
        await asyncio.wait_for(runtime.synchronized.wait(), 15)
        assert runtime.plugins == [("kerf", "99")]
        assert (await grant(bus, "granted")).ok
        assert await _created(runtime, "granted") == "0-1"
        assert await _created(runtime, "granted", "sidecar") == ""
        assert await _created(runtime, "stranger") == ""
        assert (await runtime.ask("RunPodSandbox", pb.Empty())).status.code == 12
    await runtime.stop()


async def test_the_agent_finds_a_runtime_that_comes_and_comes_again(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async with agent(nats, host) as ctx:
        await eventually(lambda: "serves no NRI" in _detail(ctx), what="the agent says that there is no NRI")
        for _ in range(2):
            runtime = FakeRuntime(_nri(host))
            await runtime.start()
            await asyncio.wait_for(runtime.synchronized.wait(), 15)
            assert _detail(ctx) == ""
            await runtime.stop()
            await eventually(lambda: _detail(ctx) != "", what="the agent misses the runtime")


async def test_a_runtime_that_does_not_take_the_plugin_is_named_in_the_health(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    runtime = FakeRuntime(_nri(host), rejects="two plugins of that name")
    await runtime.start()
    async with agent(nats, host) as ctx:
        await eventually(lambda: "two plugins of that name" in _detail(ctx), what="the runtime's reason is told")
    await runtime.stop()


async def test_with_the_policy_off_the_runtime_has_no_plugin(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    runtime = FakeRuntime(_nri(host))
    await runtime.start()
    async with agent(nats, host, cpu_affinity="off") as ctx:
        await kubelet.sees_slots()
        assert _detail(ctx) == "not asked yet"
    assert runtime.plugins == []
    await runtime.stop()
