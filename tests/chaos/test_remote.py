"""Pods that race for the one GPU that a node serves to others, with faults: it is never given twice, and it comes back
whichever side dies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.chaos.audit import Ask
from tests.chaos.remote import AGENTS, PARTS, SERVING, RemoteCluster, remote_cluster
from tests.support.cluster import own_control_plane
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane

__all__ = ["own_control_plane"]

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("chaos"), pytest.mark.timeout(420)]

CLIENTS = int(os.environ.get("KERF_CHAOS_CLIENTS", "200"))
LOCAL = CLIENTS // 10
WHOLE = Ask(1)


@pytest_asyncio.fixture
async def cluster(own_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[RemoteCluster]:
    async with remote_cluster(own_control_plane, tmp_path, seed=5) as made:
        yield made


def strikes(cluster: RemoteCluster) -> list[str]:
    """Every fault, some of them twice, in an order that is drawn."""
    faults = ["placement", "placement", "watcher", "agent-serving", "agent-clients", "agent-serving", "nats", "wipe"]
    cluster.chance.shuffle(faults)
    return faults


async def strike(cluster: RemoteCluster, fault: str) -> None:
    if fault in AGENTS:
        cluster.kill_agent(fault)
    elif fault in {"nats", "wipe"}:
        await cluster.site.nats.restart(wipe=fault == "wipe")
    else:
        cluster.site.services[f"{fault}-{cluster.chance.randrange(2)}"].kill()


async def test_many_clients_race_for_one_gpu_of_another_node(
    cluster: RemoteCluster, record_property: pytest.RecordProperty
) -> None:
    """Beside pods of the serving node, while services and agents of both sides are killed. The auditor reads the pods
    and the journals of what runs, and no book."""
    watching = asyncio.create_task(cluster.watch())
    try:
        names = [f"client-{i}" for i in range(CLIENTS)] + [f"local-{i}" for i in range(LOCAL)]
        cluster.chance.shuffle(names)
        for name in names:
            await cluster.create(name, cluster.chance.choice(PARTS), local=name.startswith("local"))
        ended, faults = 0, strikes(cluster)
        target = len(names) // 4
        while ended < target or faults:
            if faults and ended >= target * (8 - len(faults)) // 9:
                await strike(cluster, faults.pop())
            ended += await cluster.end_some(3)
            await cluster.repair()
        await cluster.load.clear()
        await cluster.free()
    finally:
        watching.cancel()
    record_property("report", f"{ended} pods ended, {len(cluster.remote)} remote, {cluster.auditor.looks} looks")
    assert cluster.auditor.violations == (), cluster.site.tails()
    assert len(cluster.remote) >= CLIENTS // 10, "hardly a pod got the GPU of another node: this shows nothing"


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_side_that_is_killed_leaves_nothing_booked_on_either_node(cluster: RemoteCluster, agent: str) -> None:
    """The pod is deleted while the agent of one side is dead. What that side had comes back when it has said so: the
    GPU by the serving node alone, and it is given to the next client."""
    await cluster.create("first", WHOLE)
    await cluster.create("second", WHOLE)
    first = await cluster.bound("first")
    assert first.spec.node_name.startswith("client-")
    cluster.kill_agent(agent)
    await cluster.load._delete("first")
    if agent == "agent-serving":
        # Nobody but the serving node may say that the GPU is free.
        await eventually(lambda: _leaving(cluster, 1), within_s=30, every_s=0.1, what="the grant leaving")
        assert not [pod for pod in await cluster.pods() if pod.metadata.name == "second" and pod.spec.node_name]
        await cluster.repair()
    second = await cluster.bound("second")
    await cluster.repair()
    assert cluster.auditor.violations == ()
    await cluster.load._delete(second.metadata.name)
    await cluster.free()


async def test_a_reboot_of_the_serving_node_gives_the_gpu_of_pods_that_live_to_others(cluster: RemoteCluster) -> None:
    """What they had on the GPU is gone with their servers. A pod without a controller stays, bound by a void grant."""
    for number in range(4):
        await cluster.create(f"first-{number}", PARTS[0])
    firsts = [await cluster.bound(f"first-{number}") for number in range(4)]
    await eventually(lambda: cluster.serves(4), within_s=30, every_s=0.1, what="four servers")
    await cluster.create("second", WHOLE)
    cluster.kill_agent("agent-serving")
    await cluster.repair()
    await cluster.bound("second")
    await eventually(lambda: cluster.serves(1), within_s=30, every_s=0.1, what="the server of the second")
    assert {pod.metadata.name for pod in await cluster.pods()} >= {pod.metadata.name for pod in firsts}
    assert cluster.auditor.violations == ()
    await cluster.load.clear()
    await cluster.free()


async def test_the_deletion_of_the_clients_node_frees_the_gpu_by_the_serving_nodes_word(cluster: RemoteCluster) -> None:
    await cluster.create("first", WHOLE)
    first = await cluster.bound("first")
    await cluster.remove_node(first.spec.node_name)
    await eventually(lambda: _taken(cluster, 0), within_s=60, every_s=0.1, what="the GPU free")
    await cluster.create("second", WHOLE)
    await cluster.bound("second")
    await cluster.load._delete("first")
    await cluster.load._delete("second")
    await cluster.free()


async def test_the_deletion_of_the_serving_node_ends_what_it_served(cluster: RemoteCluster) -> None:
    await cluster.create("first", WHOLE)
    await cluster.bound("first")
    await cluster.remove_node(SERVING)
    await eventually(lambda: _taken(cluster, 0), within_s=60, every_s=0.1, what="the grant void")
    await cluster.load._delete("first")
    await cluster.free()


async def _leaving(cluster: RemoteCluster, count: int) -> bool:
    status = await cluster.site.status()
    return status is not None and status.pods_leaving == count


async def _taken(cluster: RemoteCluster, milli: int) -> bool:
    status = await cluster.site.status()
    return status is not None and status.gpu_milli_allocated == milli
