"""Kubernetes' own gangs on each version that has them, and what their objects say of their scheduling.

Fields and conditions: kubernetes/api `scheduling/v1alpha1/types.go` (1.35: Workload, which has no status),
`scheduling/v1alpha2/types.go` (1.36: PodGroup, condition PodGroupScheduled) and `scheduling/v1beta1/types.go` (1.37:
condition PodGroupInitiallyScheduled, CompositePodGroup in v1alpha3). When it is written, and that True stays:
kubernetes/kubernetes `pkg/scheduler/schedule_one_podgroup.go`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.kube import resources
from tests.cluster.versions.site import Site, skip_below
from tests.support.waiting import eventually
from tests.support.whole import WITHIN_S, Whole

CONDITION = {36: "PodGroupScheduled", 37: "PodGroupInitiallyScheduled"}
VERSION = {36: "v1alpha2", 37: "v1beta1"}
GPU = {"kerf.dev/gpu": "1"}


class Groups:
    """PodGroups in the namespace of a test, and their pods of one GPU."""

    def __init__(self, kube: Site, world: Whole) -> None:
        self._kube, self._world = kube, world
        self._path = f"/apis/scheduling.k8s.io/{VERSION[kube.number]}/namespaces/{world.namespace}/podgroups"

    async def create(self, name: str, policy: dict[str, Any], **spec: Any) -> Any:
        return await self._world.ask(
            "POST", self._path, {"metadata": {"name": name}, "spec": {"schedulingPolicy": policy, **spec}}
        )

    async def pod(self, name: str, group: str, **limits: str) -> None:
        asked = limits or GPU
        container = {"name": "c", "image": "example", "resources": {"limits": asked, "requests": asked}}
        spec = {"containers": [container], "schedulingGroup": {"podGroupName": group}}
        await self._world.create("Pod", name, {"spec": spec})

    async def seen(self, name: str) -> Any:
        return await self._world.ask("GET", f"{self._path}/{name}")

    async def condition(self, name: str, status: str) -> Any:
        """The condition on being scheduled, once it has this status."""

        async def there() -> Any:
            conditions = (await self.seen(name)).get("status", {}).get("conditions", [])
            assert {one["type"] for one in conditions} <= {CONDITION[self._kube.number]}
            return next((one for one in conditions if one["status"] == status), None)

        return await eventually(there, within_s=WITHIN_S, every_s=0.1, what=f"PodGroup {name} says {status}")


@pytest.fixture
def groups(kube: Site, world: Whole) -> Groups:
    skip_below(kube, 36, "PodGroups")
    return Groups(kube, world)


async def bound(world: Whole) -> set[str]:
    listed = await world.ask("GET", resources.POD.collection(world.namespace))
    return {one["metadata"]["name"] for one in listed["items"] if one["spec"].get("nodeName")}


async def test_a_pod_group_is_one_gang_and_says_when_it_is_scheduled(world: Whole, groups: Groups) -> None:
    """Four GPUs: of a group of five none is bound; with a minimum of four all are."""
    made = await groups.create("train", {"gang": {"minCount": 5}})
    for number in range(5):
        await groups.pod(f"p{number}", "train")
    said = await groups.condition("train", "False")
    assert said["reason"] == "Unschedulable"
    assert "there is room for 4 of the 5 pods" in said["message"]
    assert said.get("observedGeneration") == made["metadata"].get("generation")
    assert await bound(world) == set()
    await groups.create("small", {"gang": {"minCount": 4}})
    for number in range(4):
        await groups.pod(f"s{number}", "small")
    assert (await groups.condition("small", "True"))["reason"] == "Scheduled"
    assert await bound(world) == {f"s{number}" for number in range(4)}


async def test_the_condition_is_written_once_a_change_and_true_stays(world: Whole, groups: Groups) -> None:
    await groups.create("train", {"gang": {"minCount": 2}})
    await groups.pod("p0", "train")
    first = await groups.condition("train", "False")
    assert "1 of the 2 pods" in first["message"]
    await groups.pod("p1", "train")
    last = await groups.condition("train", "True")
    assert last["lastTransitionTime"] >= first["lastTransitionTime"]
    version = (await groups.seen("train"))["metadata"]["resourceVersion"]
    await world.delete_pod("p0")
    await groups.pod("p2", "train")
    await world.bound("p2")
    await world.pod("huge", gpu="9")
    await world.event("huge", "FailedScheduling")
    assert (await groups.seen("train"))["metadata"]["resourceVersion"] == version


async def test_pods_of_a_basic_group_are_placed_one_by_one(world: Whole, groups: Groups) -> None:
    await groups.create("web", {"basic": {}})
    await groups.pod("big", "web", **{"kerf.dev/gpu": "9"})
    assert (await groups.condition("web", "False"))["reason"] == "Unschedulable"
    await groups.pod("p0", "web")
    await world.bound("p0")
    assert (await groups.condition("web", "True"))["reason"] == "Scheduled"


async def test_a_part_of_a_composite_group_waits_by_name(kube: Site, world: Whole, groups: Groups) -> None:
    """CompositePodGroups are alpha in 1.37 and not read: their parts one by one would break minGroupCount."""
    skip_below(kube, 37, "CompositePodGroups")
    base = f"/apis/scheduling.k8s.io/v1alpha3/namespaces/{world.namespace}"
    template = {"name": "part", "schedulingPolicy": {"gang": {"minCount": 1}}}
    whole = {"name": "all", "schedulingPolicy": {"gang": {"minGroupCount": 2}}, "podGroupTemplates": [template]}
    spec = {"compositePodGroupTemplates": [whole]}
    await world.ask("POST", f"{base}/workloads", {"metadata": {"name": "w"}, "spec": spec})
    root = {
        "workloadRef": {"workloadName": "w", "templateName": "all"},
        "schedulingPolicy": {"gang": {"minGroupCount": 2}},
    }
    await world.ask("POST", f"{base}/compositepodgroups", {"metadata": {"name": "all"}, "spec": root})
    await groups.create(
        "part",
        {"gang": {"minCount": 1}},
        parentCompositePodGroupName="all",
        workloadRef={"workloadName": "w", "templateName": "part"},
    )
    await groups.pod("p0", "part")
    said = (await world.event("p0", "FailedScheduling"))["message"]
    assert "is a part of CompositePodGroup all, and Kerf does not read these" in said
    assert said in (await groups.condition("part", "False"))["message"]
    assert await bound(world) == set()


async def test_a_group_of_a_workload_is_one_gang_in_1_35(kube: Site, world: Whole) -> None:
    """spec.workloadRef, which 1.36 has replaced by PodGroups."""
    if kube.number != 35:
        pytest.skip(f"Kubernetes {kube.minor} has no pods with workloadRef")
    groups = [{"name": "workers", "policy": {"gang": {"minCount": 5}}}]
    workload = {"metadata": {"name": "w"}, "spec": {"podGroups": groups}}
    await world.ask("POST", f"/apis/scheduling.k8s.io/v1alpha1/namespaces/{world.namespace}/workloads", workload)
    container = {"name": "c", "image": "example", "resources": {"limits": GPU, "requests": GPU}}
    reference = {"name": "w", "podGroup": "workers"}
    for number in range(5):
        await world.create("Pod", f"p{number}", {"spec": {"containers": [container], "workloadRef": reference}})
    assert "there is room for 4 of the 5 pods" in (await world.event("p0", "FailedScheduling"))["message"]
    assert await bound(world) == set()
    await asyncio.gather(*(world.delete_pod(f"p{number}") for number in range(5)))
