"""Capacity is released when the container has ended, and not before, whatever the state of the pod in Kubernetes."""

from __future__ import annotations

from tests.node.cluster import WITHIN_S, NodeCluster, expected, given
from tests.support.waiting import eventually


async def test_a_force_deleted_pod_keeps_its_gpus_until_its_container_has_ended(cluster: NodeCluster) -> None:
    """The API server removes the pod at once; the kubelet is stopped, so its container runs on."""
    await cluster.create_pod("stubborn", args=["stubborn"], gpu=str(cluster.gpus.count), grace_s=1)
    pod = (await cluster.running("stubborn"))["stubborn"]
    await cluster.inside("stubborn")
    await cluster.create_pod("next", gpu=str(cluster.gpus.count))
    await cluster.whole.event("next", "FailedScheduling")

    cluster.sandbox.freeze("kubelet")
    try:
        await cluster.delete("stubborn", query="?gracePeriodSeconds=0")
        await cluster.gone("stubborn")
        await eventually(
            lambda: _states(cluster, "leaving"),
            within_s=WITHIN_S,
            what="placement has requested the release, and the node has not released",
        )
        assert cluster.processes(pod) != []
        assert "nodeName" not in (await cluster.pods())["next"]["spec"]
    finally:
        cluster.sandbox.thaw("kubelet")

    bound = await cluster.whole.bound("next")
    assert cluster.processes(pod) == []
    await cluster.running("next")
    assert given(await cluster.inside("next")) == expected(cluster, bound)


async def _states(cluster: NodeCluster, state: str) -> bool:
    """Whether every GPU of the node is held by one pod in this state."""
    node = await cluster.node()
    return node is not None and all(
        [p.state for p in gpu.pods] == [state] and gpu.allocated_compute_milli == 1000 for gpu in node.gpus
    )


async def test_a_finished_pod_releases_its_gpus(cluster: NodeCluster) -> None:
    """The pod object stays, as a Job's does."""
    await cluster.create_pod("job", args=["once"], gpu=str(cluster.gpus.count), spec={"restartPolicy": "Never"})
    await cluster.create_pod("next", gpu=str(cluster.gpus.count))
    await cluster.running("next")
    assert (await cluster.pods())["job"]["status"]["phase"] == "Succeeded"
    await cluster.delete("job", "next")
    await cluster.free()


async def test_slices_that_end_while_the_agent_is_down_are_released_after_its_restart(cluster: NodeCluster) -> None:
    await cluster.create_pod("short", gpu=str(cluster.gpus.count), grace_s=1)
    await cluster.running("short")
    cluster.agent.kill()
    await cluster.delete("short")
    await cluster.gone("short")
    assert await _states(cluster, "leaving") or await _states(cluster, "bound")
    cluster.agent.start()
    await cluster.free()
