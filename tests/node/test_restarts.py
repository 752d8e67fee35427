"""Restarts of the agent, the kubelet and containers."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from tests.node.cluster import WITHIN_S, NodeCluster, container, container_id, expected, given
from tests.support.waiting import eventually


def _lives(pods: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """The container id of each pod, and how often it was restarted."""
    return {
        name: (container_id(pod), pod["status"]["containerStatuses"][0]["restartCount"]) for name, pod in pods.items()
    }


async def test_running_pods_survive_the_kill_of_agent_and_kubelet(cluster: NodeCluster) -> None:
    before = [f"before-{i}" for i in range(6)]
    await asyncio.gather(*(cluster.create_pod(name, gpu_memory="3Gi") for name in before))
    lives = _lives(await cluster.running(*before))

    async def round_of(name: str) -> None:
        """New pods work, the old ones are unchanged, and all have what they were granted."""
        after = [f"{name}-{i}" for i in range(4)]
        await asyncio.gather(*(cluster.create_pod(one, gpu_memory="4Gi") for one in after))
        pods = await cluster.running(*before, *after)
        assert _lives({one: pods[one] for one in before}) == lives
        for one, pod in pods.items():
            assert given(await cluster.inside(one)) == expected(cluster, pod), one

    cluster.agent.kill()
    cluster.agent.start()
    await cluster.offered()
    await round_of("agent")

    await cluster.kill_kubelet()
    cluster.sandbox.start_kubelet()
    await cluster.offered()
    await round_of("kubelet")

    await cluster.kill_kubelet()
    cluster.agent.kill()
    cluster.agent.start()
    cluster.sandbox.start_kubelet()
    await cluster.offered()
    await round_of("both")


async def test_a_pod_created_while_the_kubelet_is_down_waits_for_it(cluster: NodeCluster) -> None:
    """A kubelet that has just started may reject a pod that was bound before the agent's plugin has registered again
    (kubernetes #125579)."""
    await cluster.kill_kubelet()

    async def closed() -> bool:
        node = await cluster.node()
        return node is not None and {gpu.state for gpu in node.gpus} == {"suspect"}

    await eventually(closed, what="the node takes no pods")
    await cluster.create_pod("early", gpu_memory="3Gi")
    await cluster.wait_for_event("early", "does not watch this node's slots")
    cluster.sandbox.start_kubelet()
    pod = (await cluster.running("early"))["early"]
    assert given(await cluster.inside("early")) == expected(cluster, pod)


async def test_a_pod_created_while_the_agent_is_down_is_rejected_and_released(cluster: NodeCluster) -> None:
    """A device plugin that is down has no healthy devices, so the kubelet rejects the pod (docs/operators.md)."""
    cluster.agent.kill()
    await cluster.create_pod("early", gpu_memory="3Gi")
    await cluster.wait_for_event("early", "Allocate failed", "kerf.dev/slot")

    async def failed() -> Any:
        # The kubelet sends the Event before the status.
        pod = (await cluster.pods())["early"]
        return pod if pod["status"]["phase"] == "Failed" else None

    pod = await eventually(failed, within_s=WITHIN_S, every_s=0.1, what="the pod is rejected")
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    cluster.agent.start()
    await cluster.free()


async def test_an_agent_that_has_lost_its_checkpoint_starts_when_its_pods_have_ended(cluster: NodeCluster) -> None:
    """Else it would report the GPU of a container as free that still runs while its pod is deleted."""
    await cluster.create_pod("runs", gpu_memory="3Gi")
    pod = (await cluster.running("runs"))["runs"]
    cluster.agent.kill()
    cluster.sandbox.run("rm", cluster.agent.checkpoint_file)
    cluster.agent.start()
    await eventually(
        lambda: cluster.sandbox.status("agent"), within_s=WITHIN_S, every_s=0.1, what="the agent ends with an error"
    )
    said = cluster.sandbox.log("agent")
    assert f"{cluster.agent.checkpoint_file} is missing" in said
    assert pod["metadata"]["uid"] in said
    assert container_id((await cluster.running("runs"))["runs"]) == container_id(pod)

    await cluster.delete("runs")
    await cluster.gone("runs")
    cluster.agent.start()
    await cluster.offered()
    await cluster.free()
    await cluster.create_pod("next", gpu_memory="4Gi")
    following = (await cluster.running("next"))["next"]
    assert given(await cluster.inside("next")) == expected(cluster, following)


async def test_a_container_that_restarts_in_place_gets_the_same_slice(cluster: NodeCluster) -> None:
    await cluster.create_pod("crash", gpu_memory="3Gi", gpu_compute="20")
    first = (await cluster.running("crash"))["crash"]
    seen = await cluster.inside("crash")
    for pid in cluster.processes(first):
        os.kill(pid, signal.SIGKILL)

    async def again() -> Any:
        pod = (await cluster.running("crash"))["crash"]
        return pod if container_id(pod) != container_id(first) else None

    second = await eventually(again, within_s=WITHIN_S, every_s=0.1, what="the container runs again")
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert given(await cluster.inside("crash")) == given(seen) == expected(cluster, second)


async def test_each_container_of_a_pod_has_its_own_share_and_an_init_container_the_largest(
    cluster: NodeCluster,
) -> None:
    """The kubelet passes an init container's slots on to an app container, so it runs within that one's share."""
    init = [{**container("prepare", args=["once"], gpu_memory="4Gi")}]
    await cluster.create_pod(
        "several", containers=[container("a", gpu_memory="2Gi"), container("b", gpu_memory="4Gi")], init=init
    )
    pod = (await cluster.running("several"))["several"]
    assert given(await cluster.inside("several", "a")) == expected(cluster, pod, "a")
    assert given(await cluster.inside("several", "b")) == expected(cluster, pod, "b")
    assert given(await cluster.inside("several", "prepare")) == expected(cluster, pod, "b")
