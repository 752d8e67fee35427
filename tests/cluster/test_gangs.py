"""Gangs on a real API server: the Job controller creates the pods, and a PodGroup's kind may come later or never."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import structlog

from services.watcher.kube_source import KubeSource
from shared.contracts.facts import Fact, Gone, Put
from shared.kube.access import load_access
from shared.kube.client import transport_for
from shared.kube.reflector import Reflector
from shared.kube.resources import GANG_SOURCES, NODE
from shared.kube.timing import Timing
from shared.kube.transport import Response, Transport
from shared.model.objects import Gang
from tests.support.cluster import own_control_plane
from tests.support.waiting import eventually
from tests.support.whole import WITHIN_S, Whole, policed_plane, whole
from tools.control_plane import ControlPlane

__all__ = ["own_control_plane"]
pytestmark = pytest.mark.cluster
_NUMBERS = itertools.count(1)

COSCHEDULING = next(r for r in GANG_SOURCES if r.group == "scheduling.x-k8s.io")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podgroups.scheduling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"},
    },
    "spec": {
        "group": "scheduling.x-k8s.io", "scope": "Namespaced", "names": {"kind": "PodGroup", "plural": "podgroups"},
        "versions": [{
            "name": "v1alpha1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }],
    },
}  # fmt: skip


def pod_group(name: str, minimum: int) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": minimum},
    }


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with policed_plane() as made:
        status, answer = made.request("POST", CRDS, CRD)
        assert status == 201, answer
        yield made


@pytest.fixture
async def world(plane: ControlPlane) -> AsyncIterator[Whole]:
    """Two nodes of two GPUs."""
    await eventually(lambda: served(plane), within_s=WITHIN_S, what="PodGroups served")
    async with whole(plane, f"gangs-{next(_NUMBERS)}") as cluster:
        yield cluster


async def served(plane: ControlPlane) -> bool:
    status, _ = await asyncio.to_thread(plane.request, "GET", COSCHEDULING.collection())
    return status == 200


async def job(world: Whole, name: str, pods: int) -> None:
    limits = {"kerf.dev/gpu": "1"}
    template = {
        "metadata": {"annotations": {"kerf.dev/gang": name, "kerf.dev/gang-size": "owner"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "example", "resources": {"limits": limits, "requests": limits}}],
        },
    }
    document = {"metadata": {"name": name}, "spec": {"parallelism": pods, "template": template}}
    await world.ask("POST", f"/apis/batch/v1/namespaces/{world.namespace}/jobs", document)


async def pods_of(world: Whole, name: str) -> list[Any]:
    listed = await world.ask("GET", f"/api/v1/namespaces/{world.namespace}/pods?labelSelector=job-name%3D{name}")
    return list(listed["items"])


async def test_the_pods_of_a_job_are_bound_together_or_wait_together(world: Whole) -> None:
    await job(world, "train", 5)

    async def all_have_reasons() -> bool:
        pods = await pods_of(world, "train")
        said = [c["message"] for p in pods for c in p["status"].get("conditions", []) if c["type"] == "PodScheduled"]
        return len(said) == 5 and all("there is room for 4 of the 5 pods" in message for message in said)

    await eventually(
        all_have_reasons, within_s=2 * WITHIN_S, every_s=0.1, what="the reason on all pods that four would fit"
    )
    assert [p["metadata"]["name"] for p in await pods_of(world, "train") if p["spec"].get("nodeName")] == []
    await world.ask(
        "PATCH",
        f"/apis/batch/v1/namespaces/{world.namespace}/jobs/train",
        {"spec": {"parallelism": 4}},
        content_type="application/merge-patch+json",
    )

    async def four_bound() -> bool:
        return sum(1 for p in await pods_of(world, "train") if p["spec"].get("nodeName")) == 4

    await eventually(four_bound, within_s=WITHIN_S, every_s=0.1, what="the four pods bound")


async def test_pods_of_a_coscheduling_pod_group_wait_for_its_minimum(world: Whole) -> None:
    await world.ask("POST", COSCHEDULING.collection(world.namespace), pod_group("pair", 2))
    limits = {"kerf.dev/gpu": "1"}
    spec = {"containers": [{"name": "main", "image": "example", "resources": {"limits": limits, "requests": limits}}]}
    for name in ("first", "second"):
        meta = {"name": name, "labels": {"scheduling.x-k8s.io/pod-group": "pair"}}
        await world.ask("POST", f"/api/v1/namespaces/{world.namespace}/pods", {"metadata": meta, "spec": spec})
        if name == "first":
            event = await world.event("first", "FailedScheduling")
            assert "1 of the 2 pods of gang" in event["message"]
            assert not (await world.seen("Pod", "first"))["spec"].get("nodeName")
    await world.bound("first")
    await world.bound("second")


async def test_a_kind_that_is_not_installed_causes_no_error_and_is_followed_once_it_is(
    own_control_plane: ControlPlane,
) -> None:
    plane = own_control_plane
    facts: list[Fact] = []
    transport = transport_for(await load_access(str(plane.kubeconfig())))
    reflector = Reflector(
        transport,
        COSCHEDULING,
        facts.extend,
        structlog.get_logger(),
        timing=Timing(absent_s=0.05, backoff_s=0.02, backoff_max_s=0.2),
    )
    task = asyncio.create_task(reflector.run())
    try:
        await asyncio.wait_for(reflector.wait_synced(), 20)
        assert (facts, reflector.problem) == ([], "")
        await asyncio.to_thread(plane.request, "POST", CRDS, CRD)
        await eventually(lambda: served(plane), within_s=WITHIN_S, what="PodGroups served")
        status, answer = await asyncio.to_thread(
            plane.request, "POST", COSCHEDULING.collection("default"), pod_group("g", 3)
        )
        assert status == 201, answer

        async def seen() -> Fact | None:
            return facts[-1] if facts else None

        put = await eventually(seen, within_s=WITHIN_S, what="the PodGroup as a fact")
        assert isinstance(put, Put)
        assert isinstance(put.object, Gang)
        assert (put.object.metadata.name, put.object.minimum) == ("podgroup.scheduling.x-k8s.io/g", 3)
        await asyncio.to_thread(plane.request, "DELETE", f"{CRDS}/podgroups.scheduling.x-k8s.io", None)
        gone = await eventually(lambda: _last_gone(facts), within_s=WITHIN_S, what="the end of the PodGroup")
        assert gone.object.metadata.name == "podgroup.scheduling.x-k8s.io/g"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await transport.close()


async def _last_gone(facts: list[Fact]) -> Gone | None:
    return facts[-1] if isinstance(facts[-1], Gone) else None


def crd_of_ray(*versions: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "rayclusters.ray.io"},
        "spec": {
            "group": "ray.io",
            "scope": "Namespaced",
            "names": {"kind": "RayCluster", "plural": "rayclusters"},
            "versions": [
                {"name": name, "served": True, "storage": name == versions[-1], "schema": schema} for name in versions
            ],
        },
    }


RAY = next(r for r in GANG_SOURCES if r.group == "ray.io")


def ray_cluster(name: str, version: str, workers: int) -> dict[str, Any]:
    return {
        "apiVersion": f"ray.io/{version}",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {"workerGroupSpecs": [{"groupName": "gpu", "replicas": workers}]},
    }


async def test_a_kind_is_followed_in_the_version_that_the_server_has_and_when_it_changes(
    own_control_plane: ControlPlane,
) -> None:
    plane = own_control_plane
    facts: list[Fact] = []

    async def ask(method: str, path: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
        status, answer = await asyncio.to_thread(plane.request, method, path, document)
        assert status in (200, 201), answer
        return dict(json.loads(answer))

    async def serves(version: str) -> bool:
        status, _ = await asyncio.to_thread(plane.request, "GET", f"/apis/ray.io/{version}/rayclusters")
        return status == 200

    async def known(name: str) -> bool:
        return any(isinstance(fact, Put) and fact.object.metadata.name == f"raycluster.ray.io/{name}" for fact in facts)

    await ask("POST", CRDS, crd_of_ray("v7alpha1"))
    await eventually(lambda: serves("v7alpha1"), within_s=WITHIN_S, what="the first version")
    path = "/apis/ray.io/v7alpha1/namespaces/default/rayclusters"
    await ask("POST", path, ray_cluster("old", "v7alpha1", 2))
    transport = transport_for(await load_access(str(plane.kubeconfig())))
    timing = Timing(absent_s=0.05, backoff_s=0.02, backoff_max_s=0.2)
    reflector = Reflector(transport, RAY, facts.extend, structlog.get_logger(), timing=timing)
    task = asyncio.create_task(reflector.run())
    try:
        await eventually(lambda: known("old"), within_s=WITHIN_S, what="the object of the first version")
        assert reflector.resource.prefix == "apis/ray.io/v7alpha1"
        change = await ask("GET", f"{CRDS}/rayclusters.ray.io")
        change["spec"]["versions"] = crd_of_ray("v7alpha1", "v8")["spec"]["versions"]
        await ask("PUT", f"{CRDS}/rayclusters.ray.io", change)
        await eventually(lambda: serves("v8"), within_s=WITHIN_S, what="the second version")
        change = await ask("GET", f"{CRDS}/rayclusters.ray.io")
        change["spec"]["versions"][0]["served"] = False
        await ask("PUT", f"{CRDS}/rayclusters.ray.io", change)
        await ask("POST", "/apis/ray.io/v8/namespaces/default/rayclusters", ray_cluster("new", "v8", 3))
        await eventually(lambda: known("new"), within_s=WITHIN_S, what="the object of the second version")
        assert reflector.resource.prefix == "apis/ray.io/v8"
        assert not any(isinstance(fact, Gone) for fact in facts), "nothing has been deleted"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await transport.close()


class Refusing:
    """The API server behind it, but for one group, whose kinds cannot be read."""

    def __init__(self, behind: Transport, group: str) -> None:
        self._behind, self._path = behind, f"/apis/{group}"
        self.stream, self.close = behind.stream, behind.close
        self.repaired = False

    async def request(self, method: str, path: str, body: bytes = b"", **rest: Any) -> Response:
        if path.startswith(self._path) and not self.repaired:
            return Response(500, b"conversion webhook for ray.io/v1, Kind=RayCluster failed")
        return await self._behind.request(method, path, body, **rest)


async def test_a_kind_of_another_system_that_cannot_be_read_does_not_keep_the_watcher_from_starting(
    own_control_plane: ControlPlane,
) -> None:
    plane = own_control_plane
    transport = Refusing(transport_for(await load_access(str(plane.kubeconfig()))), "ray.io")
    logged: list[dict[str, Any]] = []
    log = structlog.wrap_logger(structlog.PrintLogger(), processors=[lambda _, __, event: _keep(logged, event)])
    timing = Timing(absent_s=0.05, backoff_s=0.02, backoff_max_s=0.2)
    source = KubeSource(transport, log, reporter="test", timing=timing, kinds=(NODE, RAY), unread_s=0.5)
    facts: list[Fact] = []
    task = asyncio.create_task(source.run(facts.extend))
    try:
        await asyncio.wait_for(source.wait_synced(), WITHIN_S)
        assert not source.synced
        (told,) = (event for event in logged if event["event"] == "kind_not_read")
        assert "HTTP 500" in told["why"]
        assert "rayclusters" in source.detail
        transport.repaired = True

        async def synced() -> bool:
            return source.synced

        await eventually(synced, within_s=WITHIN_S, what="the kind read after its repair")
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await transport.close()


def _keep(logged: list[dict[str, Any]], event: Any) -> str:
    logged.append(dict(event))
    return ""
