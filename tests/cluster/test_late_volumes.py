"""Volumes that bind late (WaitForFirstConsumer): Kerf names the node, the volume controller binds, the pod follows."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from shared.kube import resources
from shared.model.storage import SELECTED_NODE
from tests.support.waiting import eventually
from tests.support.whole import WITHIN_S, Whole, policed_plane, whole
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
CLASS = "local"
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with policed_plane() as made:
        body = {
            "metadata": {"name": CLASS},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        status, answer = made.request("POST", "/apis/storage.k8s.io/v1/storageclasses", body)
        assert status == 201, answer
        yield made


@pytest.fixture
async def world(plane: ControlPlane) -> AsyncIterator[Whole]:
    """Three nodes of one GPU. Volumes of earlier tests remain, on nodes that were removed."""
    async with whole(plane, f"late-{next(_NUMBERS)}", nodes=3, gpus=1) as cluster:
        yield cluster


async def volume(world: Whole, name: str, node: int, *, size: str = "10Gi") -> str:
    """A local volume on one node, by its name in full."""
    term = {
        "matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [f"{world.namespace}-{node}"]}
        ]
    }
    spec = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": CLASS,
        "local": {"path": "/mnt"},
        "persistentVolumeReclaimPolicy": "Retain",
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    await world.create("PersistentVolume", f"{world.namespace}-{name}", {"spec": spec})
    return f"{world.namespace}-{name}"


async def claim(world: Whole, name: str, *, size: str = "5Gi") -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": CLASS, "resources": {"requests": {"storage": size}}}
    await world.create("PersistentVolumeClaim", name, {"spec": spec})


async def bound_to(world: Whole, name: str) -> str:
    """The volume of a claim that is marked as bound."""
    seen = await world.seen("PersistentVolumeClaim", name)
    assert seen["status"]["phase"] == "Bound"
    found: str = seen["spec"]["volumeName"]
    return found


async def test_the_pod_goes_where_a_volume_is_and_the_claim_is_bound_first(world: Whole) -> None:
    there = await volume(world, "only", 2)
    await claim(world, "data")
    await world.pod("p", volumes=["data"], gpu="1")
    seen = await world.bound("p")
    assert seen["spec"]["nodeName"] == f"{world.namespace}-2"
    assert await bound_to(world, "data") == there
    assert "kerf.dev/grant" in seen["metadata"]["annotations"]


async def test_the_smallest_volume_that_is_large_enough(world: Whole) -> None:
    await volume(world, "small", 0, size="1Gi")
    await volume(world, "large", 1, size="100Gi")
    fitting = await volume(world, "fitting", 1, size="6Gi")
    await claim(world, "data")
    await world.pod("p", volumes=["data"], gpu="1")
    assert (await world.bound("p"))["spec"]["nodeName"] == f"{world.namespace}-1"
    assert await bound_to(world, "data") == fitting


async def test_two_claims_of_a_pod_get_two_volumes_of_one_node(world: Whole) -> None:
    """Nodes with one volume each cannot take it."""
    await volume(world, "a", 0)
    await volume(world, "b", 1)
    pair = {await volume(world, "c", 2), await volume(world, "d", 2)}
    await claim(world, "first")
    await claim(world, "second")
    await world.pod("p", volumes=["first", "second"], gpu="1")
    assert (await world.bound("p"))["spec"]["nodeName"] == f"{world.namespace}-2"
    assert {await bound_to(world, "first"), await bound_to(world, "second")} == pair


async def test_pods_compete_for_volumes_and_gpus_and_each_gets_its_own(world: Whole) -> None:
    made = {await volume(world, f"v{i}", i) for i in range(3)}
    for number in range(3):
        await claim(world, f"data-{number}")
    for number in range(3):
        await world.pod(f"p-{number}", volumes=[f"data-{number}"], gpu="1")
    nodes = {(await world.bound(f"p-{number}"))["spec"]["nodeName"] for number in range(3)}
    assert len(nodes) == 3
    assert {await bound_to(world, f"data-{number}") for number in range(3)} == made


async def test_a_claim_that_nothing_satisfies_is_named_and_a_new_volume_helps(world: Whole) -> None:
    await volume(world, "small", 0, size="1Gi")
    await claim(world, "data")
    await world.pod("p", volumes=["data"], gpu="1")
    event = await world.event("p", "FailedScheduling")
    assert "no free volume for claim data" in event["message"]
    await volume(world, "enough", 1)
    assert (await world.bound("p"))["spec"]["nodeName"] == f"{world.namespace}-1"


async def test_a_claim_that_does_not_exist_is_named_and_its_creation_helps(world: Whole) -> None:
    await volume(world, "v", 0)
    await world.pod("p", volumes=["data"], gpu="1")
    event = await world.event("p", "FailedScheduling")
    assert "PersistentVolumeClaim data does not exist" in event["message"]
    await claim(world, "data")
    assert (await world.bound("p"))["spec"]["nodeName"] == f"{world.namespace}-0"


async def test_a_volume_promised_to_a_claim_by_name_is_the_one(world: Whole) -> None:
    """The creator of the volume wrote the claim's name on it; a smaller free one elsewhere is not taken."""
    await volume(world, "free", 0, size="5Gi")
    promised = await volume(world, "promised", 1)
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": world.namespace, "name": "data"}
    await world.ask(
        "PATCH",
        resources.VOLUME.path(promised),
        {"spec": {"claimRef": reference}},
        content_type="application/merge-patch+json",
    )
    await claim(world, "data")
    await world.pod("p", volumes=["data"], gpu="1")
    assert (await world.bound("p"))["spec"]["nodeName"] == f"{world.namespace}-1"
    assert await bound_to(world, "data") == promised


async def claim_of_a_driver(world: Whole, driver: str) -> str:
    """The claim `data` of a class of this driver; the name of the class."""
    name = f"made-{world.namespace}"
    body = {"metadata": {"name": name}, "provisioner": driver, "volumeBindingMode": "WaitForFirstConsumer"}
    await world.ask("POST", "/apis/storage.k8s.io/v1/storageclasses", body)
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": name, "resources": {"requests": {"storage": "1Gi"}}}
    await world.create("PersistentVolumeClaim", "data", {"spec": spec})
    return name


async def chosen(world: Whole) -> str:
    """The node for which the volume of the claim `data` is ordered."""

    async def written() -> Any:
        notes = (await world.seen("PersistentVolumeClaim", "data"))["metadata"].get("annotations", {})
        return notes.get(SELECTED_NODE)

    return str(await eventually(written, within_s=WITHIN_S, every_s=0.05, what="the node on the claim"))


async def test_a_volume_is_made_where_its_driver_has_space_and_can_attach_it(world: Whole) -> None:
    """Of three nodes one can attach no volume of the driver, and near another one there is no space."""
    driver = f"{world.namespace}.example.com"
    nodes = [f"{world.namespace}-{number}" for number in range(3)]
    await world.create("CSIDriver", driver, {"spec": {"storageCapacity": True}})
    storage_class = await claim_of_a_driver(world, driver)
    for number, node in enumerate(nodes):
        drivers = [{"name": driver, "nodeID": node, "topologyKeys": [], "allocatable": {"count": number}}]
        await world.create("CSINode", node, {"spec": {"drivers": drivers}})
        topology = {"matchLabels": {"kubernetes.io/hostname": node}}
        space = {
            "storageClassName": storage_class,
            "nodeTopology": topology,
            "capacity": "1Gi" if number != 1 else "1Mi",
        }
        await world.create("CSIStorageCapacity", node, space)
    await world.pod("p", volumes=["data"], gpu="1")
    assert await chosen(world) == nodes[2]


async def test_a_class_with_a_provisioner_learns_the_node(world: Whole) -> None:
    """If there is no volume, the class may create one; its provisioner reads the chosen node from the claim."""
    name = await claim_of_a_driver(world, "example.com/disks")
    await world.pod("p", volumes=["data"], gpu="1")
    node = await chosen(world)
    data = await world.seen("PersistentVolumeClaim", "data")
    # The provisioner's part: a volume there, reserved for the claim.
    made = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": name,
        "local": {"path": "/mnt"},
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": world.namespace,
            "name": "data",
            "uid": data["metadata"]["uid"],
        },
        "nodeAffinity": {
            "required": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
                ]
            }
        },
    }
    await world.create("PersistentVolume", f"{world.namespace}-made", {"spec": made})
    assert (await world.bound("p"))["spec"]["nodeName"] == node
