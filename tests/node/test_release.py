"""Capacity is released when the container has ended, and not before, whatever the state of the pod in Kubernetes."""

from __future__ import annotations

from tests.node.world import WITHIN_S, World, expected, given
from tests.support.waiting import eventually


async def test_a_force_deleted_pod_keeps_its_gpus_until_its_container_has_ended(world: World) -> None:
    """The API server removes the pod at once; the kubelet is stopped, so its container runs on."""
    await world.create_pod("stubborn", args=["stubborn"], gpu=str(world.gpus.count), grace_s=1)
    pod = (await world.running("stubborn"))["stubborn"]
    await world.inside("stubborn")
    await world.create_pod("next", gpu=str(world.gpus.count))
    await world.event("next", "FailedScheduling")

    world.sandbox.freeze("kubelet")
    try:
        await world.delete("stubborn", query="?gracePeriodSeconds=0")
        await world.gone("stubborn")
        await eventually(
            lambda: _states(world, "leaving"),
            within_s=WITHIN_S,
            what="placement has requested the release, and the node has not released",
        )
        assert world.processes(pod) != []
        assert "nodeName" not in (await world.pods())["next"]["spec"]
    finally:
        world.sandbox.thaw("kubelet")

    bound = await world.bound("next")
    assert world.processes(pod) == []
    await world.running("next")
    assert given(await world.inside("next")) == expected(world, bound)


async def _states(world: World, state: str) -> bool:
    """Whether every GPU of the node is held by one pod in this state."""
    node = await world.node()
    return node is not None and all(
        [p.state for p in gpu.pods] == [state] and gpu.allocated_compute_milli == 1000 for gpu in node.gpus
    )


async def test_a_finished_pod_releases_its_gpus(world: World) -> None:
    """The pod object stays, as a Job's does."""
    await world.create_pod("job", args=["once"], gpu=str(world.gpus.count), spec={"restartPolicy": "Never"})
    await world.create_pod("next", gpu=str(world.gpus.count))
    await world.running("next")
    assert (await world.pods())["job"]["status"]["phase"] == "Succeeded"
    await world.delete("job", "next")
    await world.free()


async def test_slices_that_end_while_the_agent_is_down_are_released_after_its_restart(world: World) -> None:
    await world.create_pod("short", gpu=str(world.gpus.count), grace_s=1)
    await world.running("short")
    world.agent.kill()
    await world.delete("short")
    await world.gone("short")
    assert await _states(world, "leaving") or await _states(world, "bound")
    world.agent.start()
    await world.free()
