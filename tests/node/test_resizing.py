"""A running pod's slice is resized on a real kubelet: its container goes on, and a program in it sees the amounts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from services.node_agent.strategies import layout
from shared.kube import resources
from tests.node.cluster import WITHIN_S, NodeCluster, container_id, grant_of
from tests.node.test_enforcement import FIRM, read, root
from tests.node.test_enforcement import cluster as cluster
from tests.support.native import built
from tests.support.waiting import eventually
from tools.sandbox.node import WORKLOAD

CONTEXT_MIB = 300
"""What the canary measures on this node's fake driver, and each process is charged."""
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


def burstable() -> dict[str, Any]:
    """A container whose CPU and memory Kubernetes can resize in place."""
    amounts = {"cpu": "100m", "memory": "64Mi"}
    limits = {"kerf.dev/gpu-memory": "2Gi", "kerf.dev/gpu-compute": "30"}
    return {"name": "main", "image": WORKLOAD, "resources": {"limits": limits, "requests": amounts}}


def limits(cluster: NodeCluster, pod: Any) -> tuple[int, int]:
    gpu = layout.Orders.from_buffer_copy(read(root(cluster, pod) / "run/kerf/orders")).gpu[0]
    return gpu.memory_limit_bytes >> 20, gpu.compute_milli


def program(cluster: NodeCluster, pod: Any, folder: Path) -> subprocess.Popen[str]:
    """A program with the control block that the container has."""
    build = built("enforcement")
    environment = {
        "PATH": os.environ["PATH"],
        "KERF_FAKE_CUDA": str(folder / "program"),
        "KERF_TEST_DRIVER": str(build / "libcuda.so.1"),
        "LD_LIBRARY_PATH": str(build),
        "LD_PRELOAD": str(build / "test" / "libkerf.so"),
        "KERF_DIRECTORY": str(root(cluster, pod) / "run/kerf"),
    }
    return subprocess.Popen(
        [built("programs") / "lends"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def says(process: subprocess.Popen[str], line: str) -> tuple[int, int, int]:
    """What it has then, and what it sees as free and as the size of the GPU, in MiB."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    held, free, total = map(int, process.stdout.readline().split())
    return held, free, total


async def annotate(cluster: NodeCluster, name: str, text: str) -> None:
    body = {"metadata": {"annotations": {"kerf.dev/resize": text}}}
    await cluster.whole.ask("PATCH", resources.POD.path(name, cluster.whole.namespace), body, content_type=MERGE_PATCH)


async def test_a_running_slice_is_resized_by_annotation_and_by_command_without_a_restart(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    notes = FIRM | {"kerf.dev/gpu-uuid": cluster.gpus.uuid(0)}
    await cluster.create_pod("p", containers=[burstable()], annotations=notes)
    pod = (await cluster.running("p"))["p"]
    began, pids = container_id(pod), cluster.processes(pod)
    with program(cluster, pod, tmp_path) as process:
        assert says(process, "take 1024") == (1024, 1024 - CONTEXT_MIB, 2048)
        await annotate(cluster, "p", "memory=6Gi,compute=60")
        await eventually(lambda: limits(cluster, pod) == (6144, 600), within_s=WITHIN_S)
        assert says(process, "take 4096") == (5120, 1024 - CONTEXT_MIB, 6144)
        await annotate(cluster, "p", "memory=3Gi")
        told = await cluster.wait_for_event(
            "p", "its node cannot take back what it has", f"has allocated {5120 + CONTEXT_MIB} MiB"
        )
        assert "the slices stay as they are" in told
        assert limits(cluster, pod) == (6144, 600)
        assert says(process, "free 4096")[0] == 1024
        await eventually(lambda: limits(cluster, pod) == (3072, 600), within_s=WITHIN_S)
        assert says(process, "take 4096")[0] == 3072 - CONTEXT_MIB, "no byte more than the smaller slice"
        done = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli", "resize", "p", "-n", cluster.whole.namespace, "--memory", "4Gi"),
            *("--compute", "20", "--wait", "--nats", cluster.whole.made.url),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await done.communicate()
        assert done.returncode == 0
        assert "its slices have what it wants: 4 GiB and 20 % compute (main)" in out.decode()
        assert limits(cluster, pod) == (4096, 200)
        assert says(process, "look") == (3072 - CONTEXT_MIB, 1024, 4096)
        assert process.poll() is None
        process.kill()
    seen = (await cluster.pods())["p"]
    (share,) = grant_of(seen).containers["main"].gpus
    assert (share.memory_mib, share.compute_milli) == (4096, 200)
    node = await cluster.node()
    assert node is not None
    assert {gpu.uuid: gpu.allocated_memory_mib for gpu in node.gpus}[share.uuid] == 4096
    assert seen["status"]["containerStatuses"][0]["restartCount"] == 0
    assert (container_id(seen), cluster.processes(seen)) == (began, pids)


async def test_kubernetes_own_in_place_resize_of_cpu_changes_no_slice(cluster: NodeCluster) -> None:
    await cluster.create_pod("p", containers=[burstable()], annotations=FIRM)
    pod = (await cluster.running("p"))["p"]
    before = grant_of(pod), limits(cluster, pod)
    body = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "200m"}}}]}}
    path = f"{resources.POD.path('p', cluster.whole.namespace)}/resize"
    await cluster.whole.ask("PATCH", path, body, content_type=STRATEGIC_PATCH)

    async def resized() -> bool:
        (status,) = (await cluster.pods())["p"]["status"]["containerStatuses"]
        return bool(status.get("resources", {}).get("requests", {}).get("cpu") == "200m")

    await eventually(resized, within_s=WITHIN_S)
    seen = (await cluster.pods())["p"]
    assert (grant_of(seen), limits(cluster, seen)) == before
    assert seen["status"]["containerStatuses"][0]["restartCount"] == 0
    await annotate(cluster, "p", "memory=4Gi")
    await eventually(lambda: limits(cluster, seen) == (4096, 300), within_s=WITHIN_S)
