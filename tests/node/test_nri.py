"""The CPUs of containers, through NRI of a real containerd: near the granted GPUs, without delaying a start."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from services.node_agent.handover.nri.affinity import Numbers, numbers
from services.node_agent.handover.nri.session import talk
from services.node_agent.nri_api import nri_pb2 as pb
from tests.node.cluster import WITHIN_S, NodeCluster, cluster_on, container, expected, given
from tests.support.waiting import eventually
from tools.sandbox import Sandbox
from tools.sandbox.agent import Gpus

FIRST, SECOND = (sorted(os.sched_getaffinity(0)) * 2)[:2]
PLAIN = {"tolerations": [{"operator": "Exists"}], "schedulerName": "kerf"}

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="only one CPU: containers cannot be confined")


@pytest.fixture
async def cluster(sandbox: Sandbox, gpus: Gpus) -> AsyncIterator[NodeCluster]:
    """A node whose first four GPUs are near one CPU, and the others near another."""
    gpus.set(
        more=[f"cpus {index} {1 << (FIRST if index < gpus.count // 2 else SECOND):x}" for index in range(gpus.count)]
    )
    async with cluster_on(sandbox, gpus) as running:
        await _asked(running)
        yield running


async def _asked(cluster: NodeCluster) -> None:
    """Waits until containerd calls the agent's plugin."""
    await eventually(
        lambda: cluster.agent.samples("kerf_agent_nri_connected") == {"": 1.0},
        within_s=WITHIN_S,
        every_s=0.05,
        what="the agent is NRI's plugin",
    )


async def _create(cluster: NodeCluster, name: str, *gpus: int, requests: str = "", limit: str = "") -> None:
    """A pod with a memory share of these GPUs and this CPU request."""
    made = container(gpu=str(len(gpus)), gpu_memory=f"{len(gpus)}Gi")
    if requests:
        made["resources"]["requests"] = {"cpu": requests}
    if limit:
        made["resources"]["limits"]["cpu"] = limit
    await cluster.create_pod(
        name, containers=[made], annotations={"kerf.dev/gpu-uuid": "|".join(cluster.gpus.uuid(index) for index in gpus)}
    )


def _cpus(cluster: NodeCluster, pod: Any) -> Numbers:
    """The CPUs that the container's processes may use."""
    status = Path(f"/proc/{cluster.processes(pod)[0]}/status").read_text().splitlines()
    return numbers(next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list:")))


async def test_only_containers_with_gpus_are_confined_to_the_cpus_near_them(cluster: NodeCluster) -> None:
    await asyncio.gather(
        _create(cluster, "first", 0),
        _create(cluster, "second", 4),
        _create(cluster, "both", 1, 5),
        cluster.create_pod("plain", spec=PLAIN),
    )
    pods = await cluster.running("first", "second", "both", "plain")
    assert {name: _cpus(cluster, pod) for name, pod in pods.items()} == {
        "first": {FIRST},
        "second": {SECOND},
        "both": {FIRST, SECOND} if len(os.sched_getaffinity(0)) > 2 else _cpus(cluster, pods["plain"]),
        "plain": os.sched_getaffinity(0),
    }
    assert given(await cluster.inside("second")) == expected(cluster, pods["second"])


async def test_no_container_is_confined_below_its_promised_cpu_time(cluster: NodeCluster) -> None:
    """Neither by a limit above the CPUs near the GPU, nor by other containers that are confined to them."""
    await _create(cluster, "wide", 0, requests="100m", limit="1500m")
    await _create(cluster, "lives", 0, requests="600m")
    await cluster.running("wide", "lives")
    await _create(cluster, "late", 1, requests="600m")
    pods = await cluster.running("wide", "lives", "late")
    anywhere = os.sched_getaffinity(0)
    assert {name: _cpus(cluster, pod) for name, pod in pods.items()} == {
        "wide": anywhere,
        "lives": {FIRST},
        "late": anywhere,
    }
    assert cluster.agent.samples("kerf_agent_cpu_affinity_total") == {
        'outcome="near"': 1, 'outcome="too-few-cpus"': 1, 'outcome="cpus-promised"': 1,
    }  # fmt: skip
    await cluster.delete("lives")
    await cluster.gone("lives")
    await _create(cluster, "next", 1, requests="600m")
    assert _cpus(cluster, (await cluster.running("next"))["next"]) == {FIRST}


async def test_a_container_resized_beyond_its_cpus_may_use_all_cpus(cluster: NodeCluster) -> None:
    await _create(cluster, "grows", 0, requests="100m", limit="500m")
    pod = (await cluster.running("grows"))["grows"]
    assert _cpus(cluster, pod) == {FIRST}
    larger = {
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1500m"}}}]
        }
    }
    status, answer = await asyncio.to_thread(
        cluster.whole.plane.request, "PATCH", f"/api/v1/namespaces/{cluster.whole.namespace}/pods/grows/resize", larger,
        content_type="application/strategic-merge-patch+json",
    )  # fmt: skip
    assert status == 200, answer
    await eventually(
        lambda: _cpus(cluster, pod) == os.sched_getaffinity(0),
        within_s=WITHIN_S,
        every_s=0.1,
        what="the container may run anywhere",
    )


async def test_the_cpuset_of_another_plugin_is_kept(cluster: NodeCluster) -> None:
    """If two plugins set the same field, the container cannot be created."""

    def manages(method: str, payload: bytes) -> bytes:
        answer: Message = pb.Empty()
        if method == "Configure":
            answer = pb.ConfigureResponse(events=1 << (pb.CREATE_CONTAINER - 1))
        elif method == "Synchronize":
            synchronized.set()
        elif method == "CreateContainer":
            answer = pb.CreateContainerResponse()
            answer.adjust.linux.resources.cpu.cpus = str(SECOND)
        return bytes(answer.SerializeToString())

    synchronized = asyncio.Event()
    reader, writer = await asyncio.open_unix_connection(str(cluster.sandbox.root / "run/nri/nri.sock"))
    managing = asyncio.create_task(talk(reader, writer, "manager", "90", manages))
    try:
        await asyncio.wait_for(synchronized.wait(), WITHIN_S)
        await _create(cluster, "managed", 0)
        assert _cpus(cluster, (await cluster.running("managed"))["managed"]) == {SECOND}
    finally:
        managing.cancel()
        writer.close()
    assert cluster.agent.samples("kerf_agent_cpu_affinity_total") == {'outcome="own-cpuset"': 1}


async def test_containers_start_while_the_agent_is_down_or_hangs(cluster: NodeCluster) -> None:
    cluster.agent.kill()
    await cluster.create_pod("without", spec=PLAIN)
    await cluster.running("without")
    cluster.agent.start()
    await cluster.offered()
    await _asked(cluster)
    cluster.sandbox.freeze("agent")
    await cluster.create_pod("frozen", spec=PLAIN)
    await cluster.running("frozen")
    cluster.sandbox.thaw("agent")
    await cluster.offered()
    await _asked(cluster)
    await _create(cluster, "back", 4)
    assert _cpus(cluster, (await cluster.running("back"))["back"]) == {SECOND}


async def test_cpu_promises_are_known_after_a_restart_of_agent_or_runtime(cluster: NodeCluster) -> None:
    await _create(cluster, "lives", 0, requests="600m")
    pod = (await cluster.running("lives"))["lives"]
    cluster.agent.kill()
    cluster.agent.start()
    await cluster.offered()
    await _asked(cluster)
    await _create(cluster, "late", 1, requests="600m")
    assert _cpus(cluster, (await cluster.running("late"))["late"]) == os.sched_getaffinity(0)
    cluster.sandbox.kill("containerd")
    await eventually(
        lambda: cluster.agent.samples("kerf_agent_nri_connected") == {"": 0.0},
        within_s=WITHIN_S,
        every_s=0.05,
        what="NRI is disconnected",
    )
    cluster.sandbox.start_containerd()
    await _asked(cluster)
    await _create(cluster, "later", 4, requests="100m")
    assert _cpus(cluster, (await cluster.running("later"))["later"]) == {SECOND}
    assert _cpus(cluster, pod) == {FIRST}
