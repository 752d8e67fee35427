"""GPUs that are shared by MPS, on a real kubelet and containerd: programs in containers are clients of one daemon.

Driver and daemon are fakes (tests/fakes/cuda, tests/fakes/mps); containers get them from the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.mps.daemon import find
from shared.contracts import subjects
from shared.contracts.base import decode
from shared.kube import resources
from shared.model.gpu import Inventory
from tests.node.cluster import WITHIN_S, NodeCluster, cluster_on, grant_of
from tests.node.test_enforcement import SameGpus
from tests.support.native import built
from tests.support.waiting import eventually
from tools.sandbox import Sandbox
from tools.sandbox.node import NODE, WORKLOAD

OUT_OF_MEMORY = 2
FOLDERS = ("/lib64", "/lib/x86_64-linux-gnu")
"""The machine's C library, which the workload's image has none of."""


@pytest.fixture
async def cluster(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[NodeCluster]:
    build = built("enforcement")
    settings = {
        "KERF_NODE_AGENT_INTERPOSER_DIR": str(build), "KERF_NODE_AGENT_LIBCUDA": str(build / "libcuda.so.1"),
        "KERF_NODE_AGENT_USAGE_S": "0.2", "KERF_NODE_AGENT_MPS_NODES": '["*"]',
        "KERF_NODE_AGENT_MPS_CONTROL": str(build / "nvidia-cuda-mps-control"),
        "KERF_FAKE_CUDA": str(tmp_path / "world"), "KERF_FAKE_CUDA_SMS": "100", "KERF_FAKE_CUDA_DEVICES": "8",
    }  # fmt: skip
    async with cluster_on(sandbox, SameGpus(tmp_path), settings) as running:

        async def offers() -> bool:
            entry = await running.whole.made.bus.kv(subjects.KV_NODES).get(subjects.token(NODE))
            return entry.value is not None and decode(entry.value, Inventory).strategies == ("exclusive", "mps")

        try:
            await eventually(offers, within_s=WITHIN_S, every_s=0.2)
        except AssertionError:
            raise AssertionError(f"MPS was not proven; agent: {sandbox.log('agent')}") from None
        yield running


async def create(cluster: NodeCluster, name: str, mib: int, **limits: str) -> None:
    """A pod whose program allocates MIB and then does what its input says."""
    build, world = built("enforcement"), cluster.gpus.folder
    places = {str(build): "/kerf-build", str(world): "/kerf-world", **{folder: folder for folder in FOLDERS}}
    volumes = [{"name": f"v{n}", "hostPath": {"path": path}} for n, path in enumerate(places)]
    program = {
        "name": "main",
        "image": WORKLOAD,
        "command": ["/kerf-build/probe", "/kerf-build/libcuda.so.1", "use", str(mib)],
        "stdin": True,
        "env": [
            {"name": "KERF_FAKE_CUDA", "value": "/kerf-world/world"},
            {"name": "LD_LIBRARY_PATH", "value": "/kerf-build"},
        ],
        "volumeMounts": [{"name": f"v{n}", "mountPath": path} for n, path in enumerate(places.values())],
        "resources": {"limits": {f"kerf.dev/{key.replace('_', '-')}": value for key, value in limits.items()}},
    }
    notes = {"kerf.dev/gpu-uuid": cluster.gpus.uuid(0)}
    await cluster.create_pod(name, containers=[program], annotations=notes, spec={"volumes": volumes})


async def said(cluster: NodeCluster, name: str) -> list[int]:
    """What the container's driver has answered so far."""
    path = f"{resources.POD.path(name, cluster.whole.namespace)}/log?container=main"
    _, text = await asyncio.to_thread(cluster.whole.plane.request, "GET", path)
    return [int(json.loads(line)["result"]) for line in text.decode().splitlines() if line.startswith("{")]


def tell(pid: int, line: str) -> None:
    """Writes a line to the input of a program."""
    Path(f"/proc/{pid}/fd/0").write_text(f"{line}\n")


async def use(cluster: NodeCluster, name: str, how: str = "") -> int:
    """The driver's answer to a kernel of the container's program."""
    before = len(await said(cluster, name))
    pod = (await cluster.pods())[name]
    tell(cluster.processes(pod)[0], how)

    async def answered() -> list[int]:
        return (await said(cluster, name))[before:]

    return int((await eventually(answered, within_s=WITHIN_S, every_s=0.1))[0])


def daemons(cluster: NodeCluster) -> list[int]:
    """The control daemons of the GPU, by the machine's PIDs."""
    return [one.pid for one in find(Path(f"/run/kerf/mps/{cluster.gpus.uuid(0)}/pipe")) if one.is_control]


async def both(cluster: NodeCluster) -> dict[str, Any]:
    await create(cluster, "one", 500, gpu_memory="1Gi", gpu_compute="30")
    await create(cluster, "two", 500, gpu_memory="2Gi", gpu_compute="60")
    pods = await cluster.running("one", "two")
    await eventually(lambda: _said(cluster, [0], [0]), within_s=WITHIN_S, every_s=0.1)
    return pods


async def _said(cluster: NodeCluster, *wanted: list[int]) -> bool:
    return [await said(cluster, name) for name in ("one", "two")] == list(wanted)


async def test_two_pods_share_a_gpu_by_mps_with_limits_and_leave_no_daemon(cluster: NodeCluster) -> None:
    pods = await both(cluster)
    assert {grant_of(pod).containers["main"].strategy for pod in pods.values()} == {"mps"}
    (daemon,) = daemons(cluster)
    roots = {name: Path(f"/proc/{cluster.processes(pod)[0]}") for name, pod in pods.items()}
    variables = {name: dict(line.split("=", 1) for line in (root / "environ").read_text().split("\0") if line)
                 for name, root in roots.items()}  # fmt: skip
    assert {name: (of["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], of["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"])
            for name, of in variables.items()} == {"one": ("30", "0=1024M"), "two": ("60", "0=2048M")}  # fmt: skip
    assert len({(root / "root/dev/shm").stat().st_dev for root in (*roots.values(), Path(f"/proc/{daemon}"))}) == 1
    assert not (roots["one"] / "root/tmp/nvidia-mps/../log").exists()
    assert [await use(cluster, name) for name in ("one", "two")] == [0, 0]
    await create(cluster, "large", 1200, gpu_memory="1Gi", gpu_compute="10")
    await cluster.running("large")
    await eventually(lambda: _is(cluster, "large", [OUT_OF_MEMORY]), within_s=WITHIN_S, every_s=0.1)
    await cluster.delete("one", "two", "large")
    await cluster.gone("one", "two", "large")
    await eventually(lambda: daemons(cluster) == [], within_s=WITHIN_S, what="no daemon is left")
    await cluster.free()


async def _is(cluster: NodeCluster, name: str, wanted: list[int]) -> bool:
    return await said(cluster, name) == wanted


async def test_a_killed_daemon_is_told_to_both_pods_and_their_containers_go_on_after_a_restart(
    cluster: NodeCluster,
) -> None:
    pods = await both(cluster)
    (first,) = daemons(cluster)
    os.kill(first, signal.SIGKILL)
    for name in ("one", "two"):
        told = await cluster.wait_for_event(name, "MPS control daemon", "has ended")
        assert told.startswith("container main: ")
    await eventually(lambda: daemons(cluster) not in ([], [first]), within_s=WITHIN_S)
    assert await use(cluster, "one") != 0
    os.kill(cluster.processes(pods["one"])[0], signal.SIGKILL)
    await eventually(lambda: _is(cluster, "one", [0]), within_s=WITHIN_S, every_s=0.2)
    assert await use(cluster, "one") == 0


async def test_a_fault_of_one_pod_is_told_to_the_other_one(cluster: NodeCluster) -> None:
    pods = await both(cluster)
    assert await use(cluster, "one", "fault") != 0
    assert await use(cluster, "two") != 0
    for name in ("one", "two"):
        await cluster.wait_for_event(name, "has caused a fatal fault", "they must start again")
    for pod in pods.values():
        os.kill(cluster.processes(pod)[0], signal.SIGKILL)
    await eventually(lambda: _said(cluster, [0], [0]), within_s=WITHIN_S, every_s=0.2)
    assert await use(cluster, "two") == 0


async def test_an_agent_that_is_killed_finds_its_daemon_and_ends_it_with_the_last_pod(cluster: NodeCluster) -> None:
    await both(cluster)
    first = daemons(cluster)
    cluster.agent.kill()
    assert (daemons(cluster), await use(cluster, "one")) == (first, 0)
    cluster.agent.start()
    await cluster.offered()
    assert (daemons(cluster), await use(cluster, "two")) == (first, 0)
    await cluster.delete("one", "two")
    await cluster.gone("one", "two")
    await eventually(lambda: daemons(cluster) == [], within_s=WITHIN_S, what="no daemon is left")
