"""Pods of lower priority are preempted on a real API server: through the Eviction API, for the pod that gets the
reservation."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from shared.contracts import subjects
from shared.contracts.base import decode
from shared.contracts.preemption import Spared
from shared.kube import resources
from shared.model import names
from tests.support.waiting import eventually
from tests.support.whole import WITHIN_S, Whole, policed_plane, whole
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
_NUMBERS = itertools.count()
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with policed_plane() as made:
        for name, value, policy in (
            ("low", 0, "PreemptLowerPriority"),
            ("high", 1000, "PreemptLowerPriority"),
            ("meek", 1000, "Never"),
        ):
            status, answer = made.request(
                "POST", CLASSES, {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
            )
            assert status == 201, answer
        yield made


@pytest.fixture
async def world(plane: ControlPlane) -> AsyncIterator[Whole]:
    """Two nodes of two GPUs, all four with pods of the lowest priority."""
    async with whole(plane, f"preempt-{next(_NUMBERS)}", preemption={}) as cluster:
        for number in range(4):
            await pod(cluster, f"low-{number}", "low")
        for number in range(4):
            await cluster.bound(f"low-{number}")
        yield cluster
        # Otherwise pods that are still pending would be placed in the next test's cluster.
        await cluster.ask("DELETE", resources.POD.collection(cluster.namespace) + "?gracePeriodSeconds=0")


async def pod(world: Whole, name: str, priority: str, *, gpus: int = 1, node: str = "", **annotations: str) -> None:
    """There is no kubelet to end a pod in its grace period, so it has none."""
    limits = {"kerf.dev/gpu": str(gpus)}
    spec = {
        "priorityClassName": priority, "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "example", "resources": {"limits": limits, "requests": limits}}],
    } | ({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {})  # fmt: skip
    notes = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    await world.ask(
        "POST",
        resources.POD.collection(world.namespace),
        {"metadata": {"name": name, "annotations": notes, "labels": {"app": name}}, "spec": spec},
    )


async def left(world: Whole) -> list[str]:
    listed = await world.ask("GET", resources.POD.collection(world.namespace))
    return sorted(item["metadata"]["name"] for item in listed["items"] if item["metadata"]["name"].startswith("low-"))


async def test_one_pod_is_preempted_for_one_pod_and_no_other(world: Whole) -> None:
    uids = {f"low-{i}": (await world.seen("Pod", f"low-{i}"))["metadata"]["uid"] for i in range(4)}
    await pod(world, "high", "high")
    await world.bound("high")
    assert len(await left(world)) == 3
    gone = ({f"low-{i}" for i in range(4)} - set(await left(world))).pop()
    event = await world.event(gone, "Evicted")
    assert f"preempted by {world.namespace}/high, which has a higher priority" in event["message"]
    gains = await world.event("high", "PreemptionStarted")
    assert f"{world.namespace}/{gone} is evicted" in gains["message"]
    bucket = world.made.bus.kv(subjects.KV_SPARED)
    known = decode((await bucket.get(subjects.token(uids[gone]))).value or b"", Spared)
    assert (known.owner, len(known.since)) == (uids[gone], 1), "for whoever is preemptor next"


async def test_two_pods_of_one_node_are_preempted_for_one_pod_of_two_gpus(world: Whole) -> None:
    await pod(world, "high", "high", gpus=2)
    seen = await world.bound("high")
    stay = await left(world)
    assert len(stay) == 2
    assert {(await world.seen("Pod", name))["spec"]["nodeName"] for name in stay} != {seen["spec"]["nodeName"]}


async def test_all_of_a_gang_get_their_places(world: Whole) -> None:
    for number in range(3):
        await pod(world, f"gang-{number}", "high", gang="train", gang_size="3")
    for number in range(3):
        await world.bound(f"gang-{number}")
    assert len(await left(world)) == 1


async def test_a_pod_that_never_preempts_waits(world: Whole) -> None:
    """Its proof is that no pod is evicted: a later pod, which does preempt, is placed."""
    await pod(world, "meek", "meek")
    await world.event("meek", "FailedScheduling")
    await pod(world, "high", "high")
    await world.bound("high")
    assert not (await world.seen("Pod", "meek"))["spec"].get("nodeName")
    assert len(await left(world)) == 3


async def test_a_disruption_budget_is_respected_and_an_alternative_is_found(world: Whole) -> None:
    """Of the four only low-3 may go, by their budgets."""
    for number in range(3):
        budget = {
            "metadata": {"name": f"keep-{number}"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": f"low-{number}"}}},
        }
        await world.ask("POST", f"/apis/policy/v1/namespaces/{world.namespace}/poddisruptionbudgets", budget)

    async def counted() -> bool:
        listed = await world.ask("GET", f"/apis/policy/v1/namespaces/{world.namespace}/poddisruptionbudgets")
        return all(item.get("status", {}).get("observedGeneration") for item in listed["items"])

    await eventually(counted, within_s=WITHIN_S, what="the budgets counted")
    await pod(world, "high", "high")
    await world.bound("high")
    assert await left(world) == ["low-0", "low-1", "low-2"]


async def test_equals_wait_for_each_other(world: Whole) -> None:
    await pod(world, "equal", "low")
    await world.event("equal", "FailedScheduling")
    await pod(world, "high", "high")
    await world.bound("high")
    status, answer = await asyncio.to_thread(world.plane.request, "GET", resources.POD.path("equal", world.namespace))
    assert status == 200
    assert not json.loads(answer)["spec"].get("nodeName")


async def test_a_slice_is_throttled_through_the_annotation_and_gets_its_compute_back(plane: ControlPlane) -> None:
    """It is throttled, not ended: its Event names the pod for which it is; when the other pod has ended, it gets its
    full grant back."""
    async with whole(plane, f"preempt-{next(_NUMBERS)}", nodes=1, gpus=1, firm=True, preemption={}) as world:
        for name, priority, percent in (("low", "low", "100"), ("high", "high", "50")):
            limits = {"kerf.dev/gpu-memory": "16Gi", "kerf.dev/gpu-compute": percent}
            container = {"name": "main", "image": "example", "resources": {"limits": limits, "requests": limits}}
            spec = {"priorityClassName": priority, "terminationGracePeriodSeconds": 0, "containers": [container]}
            meta = {"name": name, "annotations": {"kerf.dev/isolation": "firm"}}
            await world.ask("POST", resources.POD.collection(world.namespace), {"metadata": meta, "spec": spec})
            await world.bound(name)
        low = await world.seen("Pod", "low")
        suspension = json.loads(low["metadata"]["annotations"]["kerf.dev/suspended"])
        assert (suspension["action"], suspension["compute_milli"]) == ("throttle", 100)
        event = await world.event("low", "Suspended")
        assert f"for {world.namespace}/high" in event["message"]
        await world.delete_pod("high")

        async def resumed() -> bool:
            seen = await world.seen("Pod", "low")
            return "kerf.dev/suspended" not in seen["metadata"]["annotations"]

        await eventually(resumed, within_s=WITHIN_S, what="low has its compute back")
        await world.event("low", "Resumed")
        assert (await world.seen("Pod", "low"))["metadata"]["uid"] == low["metadata"]["uid"]


async def test_a_pod_of_equal_priority_moves_to_the_reservation_for_its_replacement(
    plane: ControlPlane,
) -> None:
    """Each node has one GPU idle and one with a pod of a ReplicaSet. A pod that needs two GPUs waits until one of these
    pods is where the other is."""
    settings = {"defragmentation_gpu_seconds_per_hour": 3_600, "reclaim_patience": 0}
    async with whole(plane, f"preempt-{next(_NUMBERS)}", preemption=settings) as world:
        nodes = {}
        for name in ("x", "y"):
            await replicas(world, name)
            nodes[name] = await bound_of(world, name)
            await pod(world, f"beside-{name}", "low", node=nodes[name])
            await world.bound(f"beside-{name}")
        assert len(set(nodes.values())) == 2
        for name in ("x", "y"):
            await world.delete_pod(f"beside-{name}")
        before = {name: (await pods_of(world, name))[0]["metadata"]["name"] for name in ("x", "y")}
        await pod(world, "large", "low", gpus=2)
        there = (await world.bound("large"))["spec"]["nodeName"]
        other = next(node for node in nodes.values() if node != there)
        mover = next(name for name in ("x", "y") if nodes[name] == there)

        async def together() -> bool:
            found = [one for name in ("x", "y") for one in await pods_of(world, name)]
            return [one["spec"].get("nodeName") for one in found] == [other, other]

        await eventually(together, within_s=WITHIN_S, what="both on the other node")
        event = await world.event(before[mover], "Evicted")
        assert f"migrated to {other} so that {world.namespace}/large fits" in event["message"]
        assert "capacity is reserved for it there" in event["message"]
        for name in ("x", "y"):
            await world.ask("DELETE", f"/apis/apps/v1/namespaces/{world.namespace}/replicasets/{name}")
        await world.ask("DELETE", resources.POD.collection(world.namespace) + "?gracePeriodSeconds=0")


async def replicas(world: Whole, name: str) -> None:
    limits = {"kerf.dev/gpu": "1"}
    container = {"name": "main", "image": "example", "resources": {"limits": limits, "requests": limits}}
    spec = {
        "schedulerName": names.SCHEDULER_NAME,
        "priorityClassName": "low",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    body = {
        "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template},
    }
    await world.ask("POST", f"/apis/apps/v1/namespaces/{world.namespace}/replicasets", body)


async def pods_of(world: Whole, name: str) -> list[dict[str, Any]]:
    listed = await world.ask("GET", resources.POD.collection(world.namespace) + f"?labelSelector=app={name}")
    found: list[dict[str, Any]] = listed["items"]
    return found


async def bound_of(world: Whole, name: str) -> str:
    async def there() -> str:
        return next((one["spec"].get("nodeName", "") for one in await pods_of(world, name)), "")

    node: str = await eventually(there, within_s=WITHIN_S, what=f"a pod of {name} bound")
    return node
