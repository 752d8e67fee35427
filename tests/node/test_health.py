"""A GPU that fails leaves the pool, and comes back."""

from __future__ import annotations

from tests.node.cluster import WITHIN_S, NodeCluster, grant_of
from tests.support.waiting import eventually

LOST = 15
"""NVML's GPU_IS_LOST."""


async def _state(cluster: NodeCluster, index: int) -> str:
    node = await cluster.node()
    return "" if node is None else next(gpu.state for gpu in node.gpus if gpu.index == index)


async def test_a_lost_gpu_leaves_the_pool_within_five_seconds_and_comes_back(cluster: NodeCluster) -> None:
    await cluster.create_pod("runs", gpu="1")
    uuid = grant_of((await cluster.running("runs"))["runs"]).containers["main"].gpus[0].uuid
    failed = next(i for i in range(cluster.gpus.count) if cluster.gpus.uuid(i) == uuid)

    async def is_out() -> bool:
        return await _state(cluster, failed) not in ("", "healthy")

    async def is_back() -> bool:
        return await _state(cluster, failed) == "healthy"

    cluster.gpus.set(errors={failed: LOST})
    await eventually(
        is_out, within_s=5.0, every_s=0.05, what="placement no longer counts the GPU"
    )  # the promise in docs/operators.md
    await cluster.delete("runs")
    await cluster.gone("runs")
    others = [f"other-{i}" for i in range(cluster.gpus.count)]
    for name in others:
        await cluster.create_pod(name, gpu="1")
    await cluster.whole.event(others[-1], "FailedScheduling")
    pods = await cluster.running(*others[:-1])
    assert uuid not in {grant_of(pod).containers["main"].gpus[0].uuid for pod in pods.values()}

    cluster.gpus.set()
    await eventually(is_back, within_s=WITHIN_S, every_s=0.1, what="the GPU is healthy again")
    pod = (await cluster.running(others[-1]))[others[-1]]
    assert grant_of(pod).containers["main"].gpus[0].uuid == uuid
