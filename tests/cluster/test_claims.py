"""ResourceClaims on a real API server: placement decides, the watcher allocates, and leftovers are released."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from shared.kube.resources import DEVICE_CLAIM
from shared.model.grant import decode_grant
from tests.support import manifests
from tests.support.waiting import eventually
from tests.support.whole import WITHIN_S, Whole, policed_plane, whole
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
_NUMBERS = itertools.count()
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with policed_plane() as made:
        manifests.apply_all(made, "25-")
        yield made


@pytest.fixture
async def world(plane: ControlPlane) -> AsyncIterator[Whole]:
    """One node of two GPUs of 40 GiB."""
    async with whole(plane, f"claims-{next(_NUMBERS)}", nodes=1, dra=True) as cluster:
        yield cluster


def spec(device_class: str = "gpu.kerf.dev", count: int = 1, **capacity: str) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": device_class, "count": count}
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


async def claim(world: Whole, name: str, **wish: Any) -> None:
    await world.create("ResourceClaim", name, {"spec": spec(**wish)})


async def template(world: Whole, name: str, **wish: Any) -> None:
    await world.ask(
        "POST", TEMPLATES.format(world.namespace), {"metadata": {"name": name}, "spec": {"spec": spec(**wish)}}
    )


async def pod(world: Whole, name: str, **source: str) -> Any:
    """`source`: resourceClaimName or resourceClaimTemplateName."""
    container = {"name": "main", "image": "example", "resources": {"claims": [{"name": "mine"}]}}
    tolerations = [{"key": "kerf.dev/managed", "operator": "Exists"}]
    body = {
        "schedulerName": "kerf",
        "containers": [container],
        "resourceClaims": [{"name": "mine", **source}],
        "tolerations": tolerations,
    }
    return await world.create("Pod", name, {"spec": body})


async def allocated(world: Whole, pod_seen: Any) -> Any:
    """The claim of a bound pod."""
    made = pod_seen["status"].get("resourceClaimStatuses") or [
        {"resourceClaimName": pod_seen["spec"]["resourceClaims"][0].get("resourceClaimName")}
    ]
    return await world.seen("ResourceClaim", made[0]["resourceClaimName"])


async def test_a_claim_made_from_a_template_is_allocated_as_the_grant_states(world: Whole) -> None:
    await template(world, "part", memory="16Gi", compute="30")
    await pod(world, "p", resourceClaimTemplateName="part")
    seen = await world.bound("p")
    (entry, part), *_ = decode_grant(seen["metadata"]["annotations"]["kerf.dev/grant"]).containers.items()
    assert (entry, part.gpus[0].memory_mib, part.gpus[0].compute_milli) == ("claim/mine/gpu", 16_384, 300)
    found = await allocated(world, seen)
    assert part.claim == found["metadata"]["uid"]
    (device,) = found["status"]["allocation"]["devices"]["results"]
    assert (device["request"], device["driver"], device["pool"], device["device"]) == (
        "gpu",
        "gpu.kerf.dev",
        f"{world.namespace}-0",
        "gpu-0",
    )
    assert device["consumedCapacity"] == {"memory": "16Gi", "compute": "30"}
    assert [c["uid"] for c in found["status"]["reservedFor"]] == [seen["metadata"]["uid"]]
    assert "resource.kubernetes.io/delete-protection" in found["metadata"]["finalizers"]


async def test_claims_and_containers_share_the_same_gpus_in_one_book(world: Whole) -> None:
    """24 of 40 GiB by a container on one GPU, 24 by a claim on the other; a third of 24 waits."""
    await world.pod("c", gpu_memory="24Gi")
    await world.bound("c")
    await template(world, "large", memory="24Gi")
    await pod(world, "first", resourceClaimTemplateName="large")
    await world.bound("first")
    await pod(world, "second", resourceClaimTemplateName="large")
    assert "8 GiB less GPU memory" in (await world.event("second", "FailedScheduling"))["message"]
    await world.delete_pod("first")
    await world.bound("second")


async def test_a_claim_of_two_whole_gpus(world: Whole) -> None:
    await claim(world, "both", count=2)
    await pod(world, "p", resourceClaimName="both")
    found = await allocated(world, await world.bound("p"))
    results = found["status"]["allocation"]["devices"]["results"]
    assert [(r["device"], r["consumedCapacity"]["memory"]) for r in results] == [("gpu-0", "40Gi"), ("gpu-1", "40Gi")]


async def test_a_claim_goes_to_the_next_pod_when_the_first_has_ended(world: Whole) -> None:
    await claim(world, "shared", memory="1Gi")
    await pod(world, "first", resourceClaimName="shared")
    await world.bound("first")
    await pod(world, "second", resourceClaimName="shared")
    assert "is reserved for first" in (await world.event("second", "FailedScheduling"))["message"]
    await world.delete_pod("first")
    seen = await world.bound("second")
    assert (await allocated(world, seen))["status"]["reservedFor"][0]["uid"] == seen["metadata"]["uid"]


async def test_no_scheduler_gives_a_claim_with_kerfs_gpus_to_a_second_pod(world: Whole) -> None:
    """As kube-scheduler does for a pod of its own that names an allocated claim. The kubelet has the claim prepared,
    and would give that pod the first one's devices."""
    await claim(world, "mine", memory="1Gi")
    await pod(world, "first", resourceClaimName="mine")
    seen = await world.bound("first")
    other = {"resource": "pods", "name": "other", "uid": "0b9a1c52-6d0e-4f36-8a2b-3f1f0f9f8e11"}
    path = DEVICE_CLAIM.path("mine", world.namespace, sub="status")

    def reserve(*consumers: dict[str, str]) -> tuple[int, bytes]:
        found = json.loads(world.plane.request("GET", path.removesuffix("/status"))[1])
        found["status"]["reservedFor"] = list(consumers)
        return world.plane.request("PUT", path, found)

    first = {"resource": "pods", "name": "first", "uid": seen["metadata"]["uid"]}
    status, answer = await asyncio.to_thread(reserve, first, other)
    assert (status, b"[claim-of-one-pod]" in answer) == (422, True), answer
    status, answer = await asyncio.to_thread(reserve, first)
    assert status == 200, answer


async def test_a_pod_waits_for_a_claim_that_does_not_exist_yet(world: Whole) -> None:
    await pod(world, "p", resourceClaimName="later")
    assert "does not exist" in (await world.event("p", "FailedScheduling"))["message"]
    await claim(world, "later", memory="1Gi")
    await world.bound("p")


async def test_another_drivers_class_is_refused_by_name(world: Whole) -> None:
    await claim(world, "nic", device_class="nic.example.com")
    await pod(world, "p", resourceClaimName="nic")
    assert "Kerf gives devices of gpu.kerf.dev" in (await world.event("p", "FailedScheduling"))["message"]


async def test_the_allocation_of_a_decision_that_failed_is_released(world: Whole) -> None:
    """As if a leader had died between the allocation and the Binding: the claim names a GPU that the pod will not
    get."""
    path = DEVICE_CLAIM.path("mine", world.namespace, sub="status")
    await claim(world, "mine", memory="1Gi")
    gated = {
        "schedulerName": "kerf",
        "schedulingGates": [{"name": "example.com/wait"}],
        "tolerations": [{"key": "kerf.dev/managed", "operator": "Exists"}],
        "containers": [{"name": "main", "image": "example", "resources": {"claims": [{"name": "mine"}]}}],
        "resourceClaims": [{"name": "mine", "resourceClaimName": "mine"}],
    }
    created = await world.create("Pod", "p", {"spec": gated})
    stale = {
        "request": "gpu",
        "driver": "gpu.kerf.dev",
        "pool": "a-node-that-is-gone",
        "device": "gpu-7",
        "shareID": "0b9a1c52-6d0e-4f36-8a2b-3f1f0f9f8e11",
    }
    body = {
        "status": {
            "allocation": {"devices": {"results": [stale]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": created["metadata"]["uid"]}],
        }
    }
    await world.ask("PATCH", path, body, content_type="application/merge-patch+json")
    await world.ask(
        "PATCH",
        f"/api/v1/namespaces/{world.namespace}/pods/p",
        {"spec": {"schedulingGates": None}},
        content_type="application/merge-patch+json",
    )
    found = await allocated(world, await world.bound("p"))
    (device,) = found["status"]["allocation"]["devices"]["results"]
    assert (device["pool"], device["device"]) == (f"{world.namespace}-0", "gpu-0")


async def test_a_node_publishes_its_devices_and_republishes_a_lost_resource_slice(world: Whole) -> None:
    """The kubelet deletes the slices of its node when it starts."""
    path = f"/apis/resource.k8s.io/v1/resourceslices/{world.namespace}-0-gpu.kerf.dev"

    async def there() -> Any:
        status, answer = await asyncio.to_thread(world.plane.request, "GET", path)
        return json.loads(answer) if status == 200 else None

    first = await eventually(there, within_s=WITHIN_S, what="the ResourceSlice")
    assert first["spec"]["nodeName"] == f"{world.namespace}-0"
    device = first["spec"]["devices"][0]
    assert (device["name"], device["capacity"]["memory"]["value"], device["attributes"]["productName"]) == (
        "gpu-0",
        "40Gi",
        {"string": "NVIDIA A100"},
    )
    await world.ask("DELETE", path)
    again = await eventually(there, within_s=WITHIN_S, what="the ResourceSlice once more")
    assert again["metadata"]["uid"] != first["metadata"]["uid"]
