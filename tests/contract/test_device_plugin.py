"""The device plugin of a whole agent, against the kubelet's side of it over real gRPC, real NATS and the fake NVML."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.node_agent import grant_wait, kubelet_service
from services.node_agent.kubelet_api import container_runtime_pb2 as cri
from services.node_agent.kubelet_api.container_runtime_pb2_grpc import (
    RuntimeServiceServicer,
    add_RuntimeServiceServicer_to_server,
)
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.envelope import unwrap
from shared.contracts.node_commands import Accepted, NodeRelease, Released
from shared.model.gpu import Gpu, Inventory
from tests.support.fake_kubelet import FakeKubelet, FakePod
from tests.support.kubelet_agent import agent, edits, environment, grant, pod, uid
from tests.support.waiting import eventually


def cgroup(host: Path, name: str) -> Path:
    """Creates a pod's cgroup, as the kubelet does before the first start."""
    made = host / "cgroup" / "kubepods" / "burstable" / f"pod{uid(name)}"
    made.mkdir(parents=True)
    (host / "cgroup" / "cgroup.procs").touch()
    return made


async def test_a_container_gets_the_slice_of_its_own_pod(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """Sixteen pods at once, allocated in one order and started in another: each gets its own grant."""
    async with agent(nats, host):
        await kubelet.sees_slots()
        assert len(kubelet.healthy) == 64
        pods = [pod(f"p{number}") for number in range(16)]
        for one in pods:
            await kubelet.admit(one)
        for one in reversed(pods):
            assert (await grant(bus, one.name)).ok
        names = await asyncio.gather(*(kubelet.start_container(one) for one in reversed(pods)))
        assert [environment(host, name)["KERF_GRANT"] for name in names] == [f"g-{one.name}" for one in reversed(pods)]
        assert len(set(names)) == len(pods)
        assert kubelet.lists < len(pods), "one list serves all concurrent callers"


async def test_a_container_has_the_network_card_of_its_pods_grant_and_no_other(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """From the kernel's tree to the CDI spec: the inventory offers the cards with an active port, and a container gets
    the device node of the one that its grant names."""
    sys_root, dev = host / "sys", host / "dev" / "infiniband"
    dev.mkdir(parents=True)
    (dev / "rdma_cm").touch()
    for number, state in enumerate(("4: ACTIVE", "4: ACTIVE", "1: DOWN")):
        device = sys_root / "devices" / "pci0000:15" / f"0000:15:0{number}.0"
        port = device / "infiniband" / f"mlx5_{number}" / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(state)
        (port.parents[1] / "device").symlink_to(device)
        (sys_root / "class" / "infiniband").mkdir(parents=True, exist_ok=True)
        (sys_root / "class" / "infiniband" / f"mlx5_{number}").symlink_to(port.parents[1])
        verbs = sys_root / "class" / "infiniband_verbs" / f"uverbs{number}"
        verbs.mkdir(parents=True)
        (verbs / "ibdev").write_text(f"mlx5_{number}")
        (dev / f"uverbs{number}").touch()
    async with agent(nats, host, sysfs=str(sys_root), pods_per_nic=2):
        await kubelet.sees_slots()
        entry = await bus.kv(subjects.KV_NODES).get(subjects.token("n1"))
        assert entry.value is not None
        offered = {(nic.name, nic.verbs, nic.pods) for nic in decode(entry.value, Inventory).nics}
        assert offered == {("mlx5_0", "uverbs0", 2), ("mlx5_1", "uverbs1", 2), ("mlx5_2", "", 2)}
        one, two, down = pod("one"), pod("two"), pod("down")
        for each in (one, two, down):
            await kubelet.admit(each)
        await grant(bus, "one", nics=("mlx5_1",))
        await grant(bus, "two")
        await grant(bus, "down", nics=("mlx5_2",))
        mine = edits(host, await kubelet.start_container(one))
        cards = [node["path"] for node in mine["deviceNodes"] if "nvidia" not in node["path"]]
        assert cards == ["/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"]
        assert "KERF_NICS=mlx5_1" in mine["env"]
        assert "infiniband" not in str(edits(host, await kubelet.start_container(two)))
        with pytest.raises(grpc.aio.AioRpcError, match=r"mlx5_2 .*spec-not-written"):
            await kubelet.start_container(down)


async def states(bus: NatsBus) -> set[str]:
    """Those of the node's GPUs, as placement sees them."""
    entry = await bus.kv(subjects.KV_NODES).get(subjects.token("n1"))
    return set() if entry.value is None else {gpu.state for gpu in decode(entry.value, Inventory).gpus}


async def become(bus: NatsBus, state: str) -> None:
    async def they_are() -> bool:
        return await states(bus) == {state}

    await eventually(they_are, what=f"the GPUs are {state}")


async def test_pods_come_only_while_the_kubelet_knows_the_slots(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """Before, it admits a pod without a slot, whose containers never start; afterwards it refuses the pod."""
    await kubelet.stop()
    async with agent(nats, host):
        await eventually(lambda: states(bus), what="the inventory")
        assert await states(bus) == {"suspect"}
        await kubelet.start()
        await become(bus, "healthy")
        assert len(kubelet.healthy) == 64
        await kubelet.stop()
        await become(bus, "suspect")
        await kubelet.start()
        await become(bus, "healthy")
    assert await states(bus) == {"suspect"}


async def test_the_next_agent_waits_ready_and_takes_over_at_the_end_of_the_one_that_works(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    one = pod("one")
    async with contextlib.AsyncExitStack() as stack:
        async with agent(nats, host) as first:
            await kubelet.sees_slots()
            await kubelet.admit(one)
            await grant(bus, "one")
            name = await kubelet.start_container(one)
            second = await stack.enter_async_context(agent(nats, host))
            assert (first.health.ready, second.health.ready, len(kubelet.registrations)) == (True, True, 1)
            assert "another agent" in second.health.report()["parts"]["node"]["detail"]
            assert await states(bus) == {"healthy"}
        await become(bus, "healthy")
        assert len(kubelet.registrations) == 2
        assert await kubelet.start_container(one) == name
        assert "node" not in second.health.report()["parts"]


async def test_a_container_without_a_grant_does_not_start_and_the_error_says_why(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grant_wait, "WAIT_S", 0.5)
    async with agent(nats, host):
        await kubelet.sees_slots()
        late = pod("late")
        await kubelet.admit(late)
        with pytest.raises(grpc.aio.AioRpcError, match=f"no grant for pod {uid('late')}"):
            await kubelet.start_container(late)
        assert list((host / "cdi").glob("*")) == []
        await grant(bus, "late")
        assert environment(host, await kubelet.start_container(late))["KERF_GRANT"] == "g-late"


async def test_a_grant_of_another_pod_under_the_same_uid_is_refused(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async with agent(nats, host):
        await kubelet.sees_slots()
        await grant(bus, "a")
        stranger = FakePod(uid=uid("a"), namespace="team", name="stranger")
        await kubelet.admit(stranger)
        with pytest.raises(grpc.aio.AioRpcError, match="another-pod"):
            await kubelet.start_container(stranger)


async def test_the_device_gate_refuses_a_container(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async with agent(nats, host):
        await kubelet.sees_slots()
        for name in ("first", "second"):
            await grant(bus, name, main=600)
            await kubelet.admit(pod(name))
        await kubelet.start_container(kubelet.pods[uid("first")])
        with pytest.raises(grpc.aio.AioRpcError, match="gpu-memory-full"):
            await kubelet.start_container(kubelet.pods[uid("second")])


async def test_slots_are_registered_again_after_a_restart_of_the_kubelet(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """Containers that ran are started again under the same name, from the kubelet's own checkpoint."""
    async with agent(nats, host) as ctx:
        await kubelet.sees_slots()
        one = pod("one")
        await kubelet.admit(one)
        await grant(bus, "one")
        before = await kubelet.start_container(one)
        await kubelet.restart()
        await kubelet.sees_slots()
        assert len(kubelet.registrations) == 2
        assert await kubelet.start_container(one) == before
        await eventually(lambda: ctx.health.ready)


async def test_a_restarted_agent_serves_slots_allocated_by_the_old_one(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    one = pod("one")
    async with agent(nats, host):
        await kubelet.sees_slots()
        await kubelet.admit(one)
        await grant(bus, "one")
    for path in (host / "cdi").glob("*"):
        path.unlink()  # as after a reboot
    kubelet.healthy = []
    async with agent(nats, host):
        await kubelet.sees_slots()
        assert environment(host, await kubelet.start_container(one))["KERF_GRANT"] == "g-one"


@pytest.mark.parametrize(("named", "memory"), [("", "300"), ("small", "100")])
async def test_init_containers_run_within_the_slice_that_the_grant_names(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, named: str, memory: str
) -> None:
    """In a grant of an earlier version, which names none: within the largest."""
    async with agent(nats, host):
        await kubelet.sees_slots()
        one = pod("one", init_containers=("load",), containers=("small", "large"))
        await kubelet.admit(one)
        assert one.slots["load"] == one.slots["small"]
        await grant(bus, "one", init_share=named, small=100, large=300)
        seen = {
            container: environment(host, await kubelet.start_container(one, container)).get("KERF_GPU_MEMORY_MIB")
            for container in ("load", "small", "large")
        }
        assert seen == {"load": memory, "small": "100", "large": "300"}


async def test_a_missing_kubelet_is_reported_and_found_when_it_starts(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    (host / "kubelet").mkdir()
    late = FakeKubelet(host / "kubelet")
    async with agent(nats, host) as ctx:
        await eventually(lambda: "does not listen" in ctx.health.report()["parts"]["kubelet"]["detail"])
        assert not ctx.health.ready
        await late.start()
        await late.sees_slots()
        await eventually(lambda: ctx.health.ready)
    await late.stop()


async def test_nothing_starts_with_a_kubelet_checkpoint_in_an_unknown_format(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async with agent(nats, host):
        await kubelet.sees_slots()
        one = pod("one")
        await kubelet.admit(one)
        await grant(bus, "one")
        (kubelet.plugins / "kubelet_internal_checkpoint").write_text('{"Data": {"PodDeviceEntries": [{"PodUID": 1}]}}')
        with pytest.raises(grpc.aio.AioRpcError, match="a format that this version of Kerf does not support"):
            await kubelet.start_container(one)


async def test_a_slice_is_released_only_when_its_container_has_ended(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """Deleted by force: the pod is gone from Kubernetes and PodResources, but its cgroup exists."""
    released: list[str] = []

    async def ear(incoming: Incoming) -> None:
        released.append(unwrap(incoming.payload)[1].grant_id)  # type: ignore[attr-defined]

    await bus.subscribe(subjects.SLICES_RELEASED, ear)
    async with agent(nats, host):
        await kubelet.sees_slots()
        for name in ("stays", "goes"):
            await grant(bus, name)
            await kubelet.admit(pod(name))
        stays, goes = cgroup(host, "stays"), cgroup(host, "goes")
        for one in list(kubelet.pods.values()):
            await kubelet.start_container(one)
        kubelet.forget(kubelet.pods[uid("goes")])
        for name in ("stays", "goes"):
            assert decode(
                await bus.request(
                    subjects.node_command("n1", "release"),
                    encode(NodeRelease(term=1, uid=uid(name), grant_id=f"g-{name}")),
                ),
                Accepted,
            ).ok
        assert released == []
        goes.rmdir()
        await eventually(lambda: released == ["g-goes"])
        assert [path.name.startswith(f"kerf-slice-{uid('stays')}-main-") for path in (host / "cdi").iterdir()] == [True]
        stays.rmdir()
        asked = kubelet.lists
        await eventually(lambda: kubelet.lists > asked)
        assert released == ["g-goes"], "the kubelet still lists it"
        kubelet.forget(kubelet.pods[uid("stays")])
        await eventually(lambda: released == ["g-goes", "g-stays"])
        assert list((host / "cdi").iterdir()) == []


async def test_an_unconfirmed_end_of_a_container_releases_nothing(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """The cgroup is gone, but the kubelet cannot be read; or there are no pod cgroups, as when the wrong folder is
    mounted."""
    released: list[str] = []

    async def ear(incoming: Incoming) -> None:
        released.append(decode(incoming.payload, Released).grant_id)

    await bus.subscribe(subjects.RELEASES_ALL, ear)
    async with agent(nats, host) as ctx:

        def says(words: str) -> bool:
            return words in ctx.health.report()["parts"].get("release", {}).get("detail", "")

        await kubelet.sees_slots()
        one = pod("one")
        await grant(bus, "one")
        await kubelet.admit(one)
        folder = cgroup(host, "one")
        await kubelet.start_container(one)
        kubelet.forget(one)
        asked = NodeRelease(term=1, uid=uid("one"), grant_id="g-one")
        await bus.request(subjects.node_command("n1", "release"), encode(asked))
        (host / "cgroup").rename(host / "elsewhere")
        await eventually(lambda: says("the end of a container cannot be detected"))
        assert released == []
        checkpoint = kubelet.plugins / "kubelet_internal_checkpoint"
        good = checkpoint.read_text()
        checkpoint.write_text("{")
        (host / "elsewhere").rename(host / "cgroup")
        folder.rmdir()
        await eventually(lambda: says("that cannot be confirmed"))
        assert released == []
        checkpoint.write_text(good)
        await eventually(lambda: released == ["g-one"])


async def test_a_slice_is_released_while_nvml_hangs_and_its_gpu_opens_when_the_memory_in_use_is_known(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """What a process without a slice holds by then is foreign as soon as the GPU takes slices again."""
    released: list[str] = []

    async def ear(incoming: Incoming) -> None:
        released.append(decode(incoming.payload, Released).grant_id)

    async def first_gpu() -> Gpu:
        entry = await bus.kv(subjects.KV_NODES).get("n1")
        return decode(entry.value or b"", Inventory).gpus[0]

    async def has_state(state: str) -> bool:
        return (await first_gpu()).state == state

    def become(text: str) -> None:
        (host / "new").write_text(text)
        (host / "new").replace(host / "nvml")

    await bus.subscribe(subjects.RELEASES_ALL, ear)
    machine = (host / "nvml").read_text()
    settings = {"release_without_nvml_s": 0.2, "nvml_timeout_s": 0.2, "health_s": 0.05, "recover_s": 0, "poll_s": 3600}
    async with agent(nats, host, **settings):
        await kubelet.sees_slots()
        await eventually(lambda: has_state("healthy"))
        one = pod("one")
        await grant(bus, "one")
        await kubelet.admit(one)
        folder = cgroup(host, "one")
        await kubelet.start_container(one)
        asked = NodeRelease(term=1, uid=uid("one"), grant_id="g-one")
        await bus.request(subjects.node_command("n1", "release"), encode(asked))
        become(f"{machine}hang\n")
        await eventually(lambda: has_state("suspect"))
        kubelet.forget(one)
        folder.rmdir()
        await eventually(lambda: released == ["g-one"])
        assert await has_state("suspect")
        become(f"{machine}process 0 {os.getpid()} 300\n")
        await eventually(lambda: has_state("healthy"))
        assert (await first_gpu()).foreign_mib == 300


async def test_nothing_is_handed_over_if_the_checkpoint_cannot_be_written(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """And the process ends, because its memory is newer than the disk."""
    async with agent(nats, host) as ctx:
        await kubelet.sees_slots()
        one = pod("one")
        await kubelet.admit(one)
        await grant(bus, "one")
        shutil.rmtree(host / "state")
        (host / "state").touch()
        with pytest.raises(grpc.aio.AioRpcError, match="checkpoint-not-written"):
            await kubelet.start_container(one)
        assert "checkpoint cannot be written" in await ctx.failure
        (host / "state").unlink()
        with pytest.raises(grpc.aio.AioRpcError, match="checkpoint-not-written"):
            await kubelet.start_container(one)
        assert not (host / "cdi").exists(), "the state in memory alone counts for nothing, whatever the disk does now"


async def test_a_gpu_that_another_plugin_offers_takes_no_slices(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA's plugin, left on the node, with replicas. The GPU takes slices again when that plugin is removed."""
    monkeypatch.setattr(kubelet_service, "OTHER_PLUGINS_POLL_S", 0.05)

    async def states() -> dict[str, str]:
        entry = await bus.kv(subjects.KV_NODES).get(subjects.token("n1"))
        return {} if entry.value is None else {gpu.uuid: gpu.state for gpu in decode(entry.value, Inventory).gpus}

    async def are(*wanted: str) -> bool:
        now = await states()
        return (now.get("GPU-0"), now.get("GPU-1")) == wanted

    kubelet.list_other_devices = [
        ("nvidia.com/gpu", "GPU-1::0"),
        ("nvidia.com/gpu", "GPU-1::1"),
        ("rdma/hca", "mlx5_0"),
    ]
    async with agent(nats, host) as ctx:
        await eventually(lambda: are("healthy", "suspect"))
        assert "offers it as nvidia.com/gpu" in ctx.health.report()["parts"]["gpus"]["detail"]
        kubelet.list_other_devices = []
        await eventually(lambda: are("healthy", "healthy"))


class OldRuntime(RuntimeServiceServicer):
    """CRI as containerd 1.7 answers it."""

    def __init__(self) -> None:
        self.cdi = False

    async def Version(self, request: Any, context: Any) -> Any:
        return cri.VersionResponse(
            version="0.1.0", runtime_name="containerd", runtime_version="v1.7.24", runtime_api_version="v1"
        )

    async def Status(self, request: Any, context: Any) -> Any:
        return cri.StatusResponse(info={"config": json.dumps({"enableCDI": self.cdi})})


async def test_nothing_is_offered_if_the_runtime_lacks_cdi(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    (host / "run/containerd").mkdir(parents=True)
    runtime, server = OldRuntime(), grpc.aio.server()
    add_RuntimeServiceServicer_to_server(runtime, server)
    server.add_insecure_port(f"unix:{host}/run/containerd/containerd.sock")
    await server.start()
    async with agent(nats, host) as ctx:
        await eventually(lambda: "enable_cdi = true" in ctx.health.report()["parts"]["kubelet"]["detail"])
        assert (ctx.health.ready, kubelet.registrations) == (False, [])
    runtime.cdi = True
    async with agent(nats, host) as ctx:
        await kubelet.sees_slots()
        await eventually(lambda: ctx.health.ready)
    await server.stop(0)


async def test_nothing_is_offered_before_the_runtime_has_answered(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """Its socket is there, and nobody listens yet: it may be one that ignores CDI devices."""
    (host / "run/containerd").mkdir(parents=True)
    path = host / "run/containerd/containerd.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with agent(nats, host) as ctx:
        await eventually(
            lambda: "the container runtime does not answer" in ctx.health.report()["parts"]["kubelet"]["detail"]
        )
        assert (ctx.health.ready, kubelet.registrations) == (False, [])
        path.unlink()
        runtime, server = OldRuntime(), grpc.aio.server()
        runtime.cdi = True
        add_RuntimeServiceServicer_to_server(runtime, server)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        await kubelet.sees_slots()
        await eventually(lambda: ctx.health.ready)
    await server.stop(0)


async def test_nothing_is_served_without_a_kubelet(nats: EmbeddedServer, bus: NatsBus, host: Path) -> None:
    async with agent(nats, host, kubelet_dir=str(host / "nowhere")) as ctx:
        assert ctx.health.ready
        assert "kubelet" not in ctx.health.report()["parts"]


def test_hollow_nodes_do_not_import_grpc() -> None:
    """gRPC takes about 20 MB; a process of hollow nodes does not load it."""
    code = "import sys, services.node_agent.service; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
