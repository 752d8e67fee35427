"""NRI as containerd speaks it: a recorded session byte for byte, and a restarting socket with a whole agent."""

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
    """What the agent answers to these bytes, in chunks of this size, and the outcomes for containers with GPUs."""
    outcomes: list[str] = []
    plugin = CpuPlugin(
        # In the recording, this pod has a GPU that is still to be given.
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
async def test_recorded_containerd_sessions_are_answered_byte_for_byte(size: int) -> None:
    """Registration, configuration, running containers, and a container that is created, resized beyond its CPUs and
    stopped."""
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
    """Its first GPU is near the first two CPUs; the pod's cgroup exists before its containers."""
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
    """What its health reports about NRI. Without NRI a node is just as ready."""
    part = ctx.health.report()["parts"].get("nri", {"ok": True, "detail": "not asked yet"})
    assert part["ok"]
    return str(part["detail"])


async def test_a_container_with_a_grant_gets_the_cpus_near_its_gpu(
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


async def test_the_agent_connects_to_a_runtime_that_starts_and_restarts(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async with agent(nats, host) as ctx:
        await eventually(lambda: "serves no NRI" in _detail(ctx), what="the agent reports that there is no NRI")
        for _ in range(2):
            runtime = FakeRuntime(_nri(host))
            await runtime.start()
            await asyncio.wait_for(runtime.synchronized.wait(), 15)
            assert _detail(ctx) == ""
            await runtime.stop()
            await eventually(lambda: _detail(ctx) != "", what="the agent has noticed that the runtime is down")


async def test_a_rejected_plugin_is_reported_in_the_health(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    runtime = FakeRuntime(_nri(host), rejects="two plugins of that name")
    await runtime.start()
    async with agent(nats, host) as ctx:
        await eventually(lambda: "two plugins of that name" in _detail(ctx), what="the runtime's reason is reported")
    await runtime.stop()


async def test_with_cpu_affinity_off_no_plugin_is_registered(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    runtime = FakeRuntime(_nri(host))
    await runtime.start()
    async with agent(nats, host, cpu_affinity="off") as ctx:
        await kubelet.sees_slots()
        assert _detail(ctx) == "not asked yet"
    assert runtime.plugins == []
    await runtime.stop()
