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
from tests.node.world import WITHIN_S, World, container, expected, given, world_on
from tests.support.waiting import eventually
from tools.sandbox import Sandbox
from tools.sandbox.agent import Gpus

FIRST, SECOND = (sorted(os.sched_getaffinity(0)) * 2)[:2]
PLAIN = {"tolerations": [{"operator": "Exists"}], "schedulerName": "kerf"}

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="only one CPU: containers cannot be confined")


@pytest.fixture
async def world(sandbox: Sandbox, gpus: Gpus) -> AsyncIterator[World]:
    """A node whose first four GPUs are near one CPU, and the others near another."""
    gpus.set(
        more=[f"cpus {index} {1 << (FIRST if index < gpus.count // 2 else SECOND):x}" for index in range(gpus.count)]
    )
    async with world_on(sandbox, gpus) as made:
        await _asked(made)
        yield made


async def _asked(world: World) -> None:
    """Waits until containerd calls the agent's plugin."""
    await eventually(
        lambda: world.agent.samples("kerf_agent_nri_connected") == {"": 1.0},
        within_s=WITHIN_S,
        every_s=0.05,
        what="the agent is NRI's plugin",
    )


async def _create(world: World, name: str, *gpus: int, requests: str = "", limit: str = "") -> None:
    """A pod with a memory share of these GPUs and this CPU request."""
    made = container(gpu=str(len(gpus)), gpu_memory=f"{len(gpus)}Gi")
    if requests:
        made["resources"]["requests"] = {"cpu": requests}
    if limit:
        made["resources"]["limits"]["cpu"] = limit
    await world.create_pod(
        name, containers=[made], annotations={"kerf.dev/gpu-uuid": "|".join(world.gpus.uuid(index) for index in gpus)}
    )


def _cpus(world: World, pod: Any) -> Numbers:
    """The CPUs that the container's processes may use."""
    status = Path(f"/proc/{world.processes(pod)[0]}/status").read_text().splitlines()
    return numbers(next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list:")))


async def test_only_containers_with_gpus_are_confined_to_the_cpus_near_them(world: World) -> None:
    await asyncio.gather(
        _create(world, "first", 0),
        _create(world, "second", 4),
        _create(world, "both", 1, 5),
        world.create_pod("plain", spec=PLAIN),
    )
    pods = await world.running("first", "second", "both", "plain")
    assert {name: _cpus(world, pod) for name, pod in pods.items()} == {
        "first": {FIRST},
        "second": {SECOND},
        "both": {FIRST, SECOND} if len(os.sched_getaffinity(0)) > 2 else _cpus(world, pods["plain"]),
        "plain": os.sched_getaffinity(0),
    }
    assert given(await world.inside("second")) == expected(world, pods["second"])


async def test_no_container_is_confined_below_its_promised_cpu_time(world: World) -> None:
    """Neither by a limit above the CPUs near the GPU, nor by other containers that are confined to them."""
    await _create(world, "wide", 0, requests="100m", limit="1500m")
    await _create(world, "lives", 0, requests="600m")
    await world.running("wide", "lives")
    await _create(world, "late", 1, requests="600m")
    pods = await world.running("wide", "lives", "late")
    anywhere = os.sched_getaffinity(0)
    assert {name: _cpus(world, pod) for name, pod in pods.items()} == {
        "wide": anywhere,
        "lives": {FIRST},
        "late": anywhere,
    }
    assert world.agent.samples("kerf_agent_cpu_affinity_total") == {
        'outcome="near"': 1, 'outcome="too-few-cpus"': 1, 'outcome="cpus-promised"': 1,
    }  # fmt: skip
    await world.delete("lives")
    await world.gone("lives")
    await _create(world, "next", 1, requests="600m")
    assert _cpus(world, (await world.running("next"))["next"]) == {FIRST}


async def test_a_container_resized_beyond_its_cpus_may_use_all_cpus(world: World) -> None:
    await _create(world, "grows", 0, requests="100m", limit="500m")
    pod = (await world.running("grows"))["grows"]
    assert _cpus(world, pod) == {FIRST}
    larger = {
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1500m"}}}]
        }
    }
    status, answer = await asyncio.to_thread(
        world.plane.request, "PATCH", f"/api/v1/namespaces/{world.namespace}/pods/grows/resize", larger,
        content_type="application/strategic-merge-patch+json",
    )  # fmt: skip
    assert status == 200, answer
    await eventually(
        lambda: _cpus(world, pod) == os.sched_getaffinity(0),
        within_s=WITHIN_S,
        every_s=0.1,
        what="the container may run anywhere",
    )


async def test_the_cpuset_of_another_plugin_is_kept(world: World) -> None:
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
    reader, writer = await asyncio.open_unix_connection(str(world.sandbox.root / "run/nri/nri.sock"))
    managing = asyncio.create_task(talk(reader, writer, "manager", "90", manages))
    try:
        await asyncio.wait_for(synchronized.wait(), WITHIN_S)
        await _create(world, "managed", 0)
        assert _cpus(world, (await world.running("managed"))["managed"]) == {SECOND}
    finally:
        managing.cancel()
        writer.close()
    assert world.agent.samples("kerf_agent_cpu_affinity_total") == {'outcome="own-cpuset"': 1}


async def test_containers_start_while_the_agent_is_down_or_hangs(world: World) -> None:
    world.agent.kill()
    await world.create_pod("without", spec=PLAIN)
    await world.running("without")
    world.agent.start()
    await world.offered()
    await _asked(world)
    world.sandbox.freeze("agent")
    await world.create_pod("frozen", spec=PLAIN)
    await world.running("frozen")
    world.sandbox.thaw("agent")
    await world.offered()
    await _asked(world)
    await _create(world, "back", 4)
    assert _cpus(world, (await world.running("back"))["back"]) == {SECOND}


async def test_cpu_promises_are_known_after_a_restart_of_agent_or_runtime(world: World) -> None:
    await _create(world, "lives", 0, requests="600m")
    pod = (await world.running("lives"))["lives"]
    world.agent.kill()
    world.agent.start()
    await world.offered()
    await _asked(world)
    await _create(world, "late", 1, requests="600m")
    assert _cpus(world, (await world.running("late"))["late"]) == os.sched_getaffinity(0)
    world.sandbox.kill("containerd")
    await eventually(
        lambda: world.agent.samples("kerf_agent_nri_connected") == {"": 0.0},
        within_s=WITHIN_S,
        every_s=0.05,
        what="NRI is disconnected",
    )
    world.sandbox.start_containerd()
    await _asked(world)
    await _create(world, "later", 4, requests="100m")
    assert _cpus(world, (await world.running("later"))["later"]) == {SECOND}
    assert _cpus(world, pod) == {FIRST}
