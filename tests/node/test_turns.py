"""Two pods take turns on one GPU of a real kubelet's node: neither restarts, and people are told why one waits."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.ask import ask
from services.node_agent.strategies import layout
from shared.contracts import queries
from shared.contracts.queries import ExplainAnswer, StatusAnswer, StatusQuery, WhenAnswer, WhenQuery, WhyQuery
from shared.kube import resources
from shared.model import names
from shared.turns.gpu_time import read_gpu_time
from tests.node.cluster import WITHIN_S, NodeCluster, container_id, grant_of
from tests.node.test_enforcement import FIRM, enforcing, read, root
from tests.support.waiting import eventually
from tools.sandbox import Sandbox
from tools.sandbox.agent import MEMORY_MIB

POLICY = resources.POLICY.path("kerf-policy", "kerf-system")
RULES = "turns: {level_bounds_gpu_s: [1], min_turn_s: 1, max_wait_s: 3600}"
"""After a second on the GPU a pod yields to one that has had less."""

COPIES = {"copied_mib_per_s": 1_000_000.0, "copy_fixed_s": 0.01}
"""These are worth it for a turn of a second."""
LEFT_MIB = 9_000
"""What a pod that takes no turns leaves of the GPU's memory."""


@pytest.fixture
async def cluster(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[NodeCluster]:
    async with taking_turns(sandbox, tmp_path, RULES) as running:
        yield running


@contextlib.asynccontextmanager
async def taking_turns(
    sandbox: Sandbox, tmp_path: Path, rules: str, *, idle_after_s: float = 0
) -> AsyncIterator[NodeCluster]:
    async with enforcing(sandbox, tmp_path, preemption=COPIES, idle_after_s=idle_after_s) as running:
        document = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "kerf-policy", "namespace": "kerf-system"},
            "data": {"queues.yaml": rules},
        }
        await running.whole.ask(
            "PATCH",
            f"{POLICY}?fieldManager=tests&force=true",
            document,
            content_type="application/apply-patch+yaml",
        )
        yield running
        await asyncio.to_thread(running.whole.plane.request, "DELETE", POLICY)


def is_paused(cluster: NodeCluster, pod: Any) -> bool:
    """By the control block of the container, which its programs read."""
    return bool(layout.Orders.from_buffer_copy(read(root(cluster, pod) / "run/kerf/orders")).paused)


@pytest.mark.parametrize(("memory_mib", "does"), [(2_048, "paused"), (5_120, "checkpointed to host")])
async def test_two_pods_take_turns_and_neither_restarts(cluster: NodeCluster, memory_mib: int, does: str) -> None:
    """Their compute does not fit beside each other; if their memory does not either, it goes to the host."""
    gpu = FIRM | {names.ANNOTATION_GPU_UUID: cluster.gpus.uuid(0)}
    notes = gpu | {names.ANNOTATION_TURNS: "allowed"}
    await cluster.create_pod("other", annotations=gpu, gpu_memory=f"{MEMORY_MIB - LEFT_MIB}Mi", gpu_compute="10")
    await cluster.running("other")
    part = {"gpu_memory": f"{memory_mib}Mi", "gpu_compute": "60"}
    await cluster.create_pod("long", annotations=notes, **part)
    long = (await cluster.running("long"))["long"]
    await cluster.create_pod("new", annotations=notes, **part)
    await cluster.wait_for_event("long", does, "it is the turn of", "/new")
    new = (await cluster.running("new"))["new"]
    assert [of.gpus for of in grant_of(new).containers.values()] == [
        of.gpus for of in grant_of(long).containers.values()
    ]
    assert is_paused(cluster, long)
    assert not is_paused(cluster, new)

    query = WhyQuery(namespace=cluster.whole.namespace, name="long")
    why = (await ask(cluster.whole.made.bus, queries.WHY.subject, query, ExplainAnswer)).explanation
    assert why is not None
    assert f"suspended for the turn of {cluster.whole.namespace}/new" in why.sentence
    top = await ask(cluster.whole.made.bus, queries.STATUS.subject, StatusQuery(suspended=5), StatusAnswer)
    (shown,) = top.suspended
    assert (shown.name, shown.turn_of, shown.level) == ("long", f"{cluster.whole.namespace}/new", 1)
    assert top.on_host_mib == (memory_mib if shown.action == "checkpoint" else 0)

    await cluster.delete("new")
    await cluster.wait_for_event("long", "all of its grant is free again")
    await eventually(lambda: not is_paused(cluster, long), within_s=WITHIN_S, what="it runs on")
    now = (await cluster.running("long"))["long"]
    assert container_id(now) == container_id(long)
    assert [status["restartCount"] for status in now["status"]["containerStatuses"]] == [0]
    record = read_gpu_time(now["metadata"]["annotations"])
    assert record is not None
    assert record.turns == 1
    assert record.attained_gpu_ms >= 1000


async def test_a_gang_stands_still_as_a_whole_before_it_is_checkpointed(cluster: NodeCluster) -> None:
    """Placement orders the checkpoints only after the agent has said that all members stand still."""
    gpu = FIRM | {names.ANNOTATION_GPU_UUID: cluster.gpus.uuid(0)}
    turns = gpu | {names.ANNOTATION_TURNS: "allowed"}
    gang = turns | {names.ANNOTATION_GANG: "ranks", names.ANNOTATION_GANG_SIZE: "2"}
    await cluster.create_pod("other", annotations=gpu, gpu_memory=f"{MEMORY_MIB - LEFT_MIB}Mi", gpu_compute="10")
    await cluster.running("other")
    for name in ("rank-0", "rank-1"):
        await cluster.create_pod(name, annotations=gang, gpu_memory="2560Mi", gpu_compute="30")
    ranks = await cluster.running("rank-0", "rank-1")
    await cluster.create_pod("new", annotations=turns, gpu_memory="5120Mi", gpu_compute="60")
    for name in ranks:
        await cluster.wait_for_event(name, "checkpointed to host", "it is the turn of", "/new")
    await cluster.running("new")
    assert all(is_paused(cluster, pod) for pod in ranks.values())
    await cluster.delete("new")
    for name, pod in ranks.items():
        await cluster.wait_for_event(name, "all of its grant is free again")
        await eventually(lambda pod=pod: not is_paused(cluster, pod), within_s=WITHIN_S, what=f"{name} runs on")


async def test_a_checkpointed_pod_comes_back_to_another_gpu_and_its_container_has_never_ended(
    cluster: NodeCluster,
) -> None:
    """Its own is taken by the pod whose turn it is; another one becomes free."""
    turns = FIRM | {names.ANNOTATION_TURNS: "allowed"}
    for index in range(cluster.gpus.count):
        left_mib = 1_024 if index else LEFT_MIB
        await cluster.create_pod(
            f"fill-{index}",
            annotations=FIRM | {names.ANNOTATION_GPU_UUID: cluster.gpus.uuid(index)},
            gpu_memory=f"{MEMORY_MIB - left_mib}Mi",
            gpu_compute="10",
        )
        await cluster.running(f"fill-{index}")
    part = {"annotations": turns, "gpu_memory": "5120Mi", "gpu_compute": "60"}
    await cluster.create_pod("long", **part)
    long = (await cluster.running("long"))["long"]
    assert (grant_of(long).any_gpu, gpu_of(long)) == (True, cluster.gpus.uuid(0))
    await cluster.create_pod("new", **part)
    await cluster.wait_for_event("long", "checkpointed to host", "it is the turn of", "/new")
    new = (await cluster.running("new"))["new"]
    await cluster.delete("fill-1")
    await eventually(lambda: not is_paused(cluster, long), within_s=WITHIN_S, what="it runs on")
    now = (await cluster.running("long"))["long"]
    assert (gpu_of(now), gpu_of(new)) == (cluster.gpus.uuid(1), cluster.gpus.uuid(0))
    written = layout.Orders.from_buffer_copy(read(root(cluster, now) / "run/kerf/orders"))
    assert (bytes(written.gpu[0].uuid), written.hides_others) == (layout.uuid_bytes(cluster.gpus.uuid(1)), 1)
    assert container_id(now) == container_id(long)
    assert [status["restartCount"] for status in now["status"]["containerStatuses"]] == [0]
    devices = list((root(cluster, now) / "dev").glob("nvidia[0-9]*"))
    assert len(devices) == cluster.gpus.count


async def test_an_idle_pod_yields_at_once_and_comes_back_when_it_wants_its_gpu(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """By levels and least turns neither would yield to the other within this test."""
    never = "turns: {level_bounds_gpu_s: [1000000], min_turn_s: 3000, max_wait_s: 3600}"
    async with taking_turns(sandbox, tmp_path, never, idle_after_s=1) as cluster:
        gpu = FIRM | {names.ANNOTATION_GPU_UUID: cluster.gpus.uuid(0)}
        await cluster.create_pod("other", annotations=gpu, gpu_memory=f"{MEMORY_MIB - LEFT_MIB}Mi", gpu_compute="10")
        await cluster.running("other")
        part = {"gpu_memory": "5120Mi", "gpu_compute": "60", "annotations": gpu | {names.ANNOTATION_TURNS: "allowed"}}
        await cluster.create_pod("notebook", **part)
        notebook = (await cluster.running("notebook"))["notebook"]
        await cluster.create_pod("new", **part)
        await cluster.wait_for_event("notebook", "checkpointed to host memory while idle: it is the turn of", "/new")
        await cluster.running("new")
        await cluster.delete("new")
        await cluster.gone("new")
        query = WhenQuery(namespace=cluster.whole.namespace, name="notebook")
        when = (await ask(cluster.whole.made.bus, queries.WHEN.subject, query, WhenAnswer)).when
        assert when is not None
        assert when.sentence.startswith("when it wants the GPU, in its turn")
        assert is_paused(cluster, notebook)
        with a_call_that_waits(root(cluster, notebook) / "run/kerf/counters"):
            await eventually(lambda: not is_paused(cluster, notebook), within_s=WITHIN_S, what="it has its GPU again")
        now = (await cluster.running("notebook"))["notebook"]
        assert container_id(now) == container_id(notebook)
        assert [status["restartCount"] for status in now["status"]["containerStatuses"]] == [0]


@contextlib.contextmanager
def a_call_that_waits(counters: Path) -> Iterator[None]:
    """What the interposer writes for a process of which a thread waits for the GPU: its slot, and the lock on it."""
    with counters.open("r+b", buffering=0) as file:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, layout.LOCK_AT, 1, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        for field, value in (("state", struct.pack("<Q", 3)), ("waiting", struct.pack("<I", 1))):
            file.seek(layout.Counters.process.offset + getattr(layout.Process, field).offset)
            file.write(value)
        yield


def gpu_of(pod: Any) -> str:
    ((share,),) = [part.gpus for part in grant_of(pod).containers.values()]
    return share.uuid
