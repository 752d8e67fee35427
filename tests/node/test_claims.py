"""ResourceClaims on a real kubelet: prepared by the grant, and by nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from shared.model.grant import decode_grant
from tests.node.cluster import WITHIN_S, NodeCluster, container_id, grant_of
from tests.support.waiting import eventually
from tools.sandbox.inside import minor
from tools.sandbox.node import NODE, WORKLOAD

TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates"


def claim_spec(count: int = 1, **capacity: str) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": "gpu.kerf.dev", "count": count}
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


async def template(cluster: NodeCluster, name: str, **wish: Any) -> None:
    await cluster.whole.ask(
        "POST",
        TEMPLATES.format(cluster.whole.namespace),
        {"metadata": {"name": name}, "spec": {"spec": claim_spec(**wish)}},
    )


async def pod(cluster: NodeCluster, name: str, scheduler: str = "kerf", **source: str) -> None:
    users = [{"name": "main", "image": WORKLOAD, "args": [], "resources": {"claims": [{"name": "mine"}]}}]
    spec = {
        "schedulerName": scheduler,
        "resourceClaims": [{"name": "mine", **source}],
        "tolerations": [{"operator": "Exists"}],
    }
    await cluster.create_pod(name, containers=users, spec=spec)


async def test_claims_and_slots_get_the_gpus_of_their_grants(cluster: NodeCluster) -> None:
    """Ten pods of each kind at once: parts of one GPU by claim, parts by resources, and two whole GPUs by claim."""
    await template(cluster, "part", memory="4Gi", compute="5")
    await template(cluster, "pair", count=2)
    claimed, slotted = [f"claim-{i}" for i in range(10)], [f"slot-{i}" for i in range(10)]
    await asyncio.gather(
        *(pod(cluster, name, resourceClaimTemplateName="part") for name in claimed),
        *(cluster.create_pod(name, gpu_memory="4Gi") for name in slotted),
        pod(cluster, "pair", resourceClaimTemplateName="pair"),
    )
    pods = await cluster.running(*claimed, *slotted, "pair")
    for name in (*claimed, "pair"):
        grant = grant_of(pods[name])
        shares = grant.containers["claim/mine/gpu"].gpus
        seen = await cluster.inside(name)
        uuids = {share.uuid for share in shares}
        assert seen.environment["KERF_GRANT"] == grant.grant_id
        assert set(seen.environment["KERF_GPUS"].split(",")) == uuids
        assert seen.environment["KERF_GPU_MEMORY_MIB"] == str(sum(share.memory_mib for share in shares))
        wanted = [f"/dev/nvidia{minor(i)}" for i in range(cluster.gpus.count) if cluster.gpus.uuid(i) in uuids]
        assert seen.devices == sorted([*wanted, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"])
    await cluster.delete(*claimed, *slotted, "pair")
    await cluster.gone(*claimed, *slotted, "pair")
    await cluster.free()


async def test_claims_survive_restarts_of_agent_and_kubelet(cluster: NodeCluster) -> None:
    await template(cluster, "part", memory="4Gi")
    await pod(cluster, "before", resourceClaimTemplateName="part")
    first = (await cluster.running("before"))["before"]
    cluster.agent.kill()
    cluster.agent.start()
    await cluster.kill_kubelet()
    cluster.sandbox.start_kubelet()
    await cluster.offered()
    await pod(cluster, "after", resourceClaimTemplateName="part")
    now = await cluster.running("before", "after")
    assert (
        now["before"]["status"]["containerStatuses"][0]["containerID"]
        == first["status"]["containerStatuses"][0]["containerID"]
    )
    assert (await cluster.inside("after")).environment["KERF_GRANT"] == grant_of(now["after"]).grant_id
    # The kubelet does not prepare the claim again for a container that restarts in place, so its spec must still exist.
    for pid in cluster.processes(now["before"]):
        os.kill(pid, signal.SIGKILL)

    async def again() -> bool:
        return container_id((await cluster.running("before"))["before"]) != container_id(first)

    await eventually(again, within_s=WITHIN_S, every_s=0.1, what="the container runs again")
    assert (await cluster.inside("before")).environment["KERF_GRANT"] == grant_of(first).grant_id


async def test_an_allocation_without_a_grant_starts_nothing(cluster: NodeCluster) -> None:
    """All that the API server and the kubelet check is correct: allocated, reserved, bound.

    But Kerf has decided nothing.
    """
    made = await cluster.whole.ask(
        "POST",
        f"/apis/resource.k8s.io/v1/namespaces/{cluster.whole.namespace}/resourceclaims",
        {"metadata": {"name": "stolen"}, "spec": claim_spec(memory="1Gi")},
    )
    await cluster.create_pod(
        "thief",
        containers=[{"name": "main", "image": WORKLOAD, "args": [], "resources": {"claims": [{"name": "mine"}]}}],
        spec={
            "schedulerName": "nobody",
            "resourceClaims": [{"name": "mine", "resourceClaimName": "stolen"}],
            "tolerations": [{"operator": "Exists"}],
        },
    )
    thief = await cluster.whole.seen("Pod", "thief")
    result = {
        "request": "gpu",
        "driver": "gpu.kerf.dev",
        "pool": NODE,
        "device": "gpu-0",
        "shareID": "0b9a1c52-6d0e-4f36-8a2b-3f1f0f9f8e11",
    }
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "thief", "uid": thief["metadata"]["uid"]}],
    }
    claims = f"/apis/resource.k8s.io/v1/namespaces/{cluster.whole.namespace}/resourceclaims"
    path = f"{claims}/{made['metadata']['name']}/status"
    await cluster.whole.ask("PATCH", path, {"status": status}, content_type="application/merge-patch+json")
    await cluster.bind_by_hand("thief")
    assert "this node has no grant for ResourceClaim" in await cluster.wait_for_event("thief", "no-grant")
    seen = await cluster.whole.seen("Pod", "thief")
    assert "kerf.dev/grant" not in seen["metadata"].get("annotations", {})
    assert not any(s.get("started") for s in seen["status"].get("containerStatuses", []))


async def test_the_resource_slice_lists_the_gpus_of_the_node(cluster: NodeCluster) -> None:
    await template(cluster, "one")
    await pod(cluster, "p", resourceClaimTemplateName="one")
    running = (await cluster.running("p"))["p"]
    share = decode_grant(running["metadata"]["annotations"]["kerf.dev/grant"]).containers["claim/mine/gpu"].gpus[0]
    listed = await cluster.whole.ask(
        "GET", "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver=gpu.kerf.dev"
    )
    (found,) = [item for item in listed["items"] if item["spec"]["nodeName"] == NODE]
    by_uuid = {device["attributes"]["uuid"]["string"]: device for device in found["spec"]["devices"]}
    assert set(by_uuid) == {cluster.gpus.uuid(i) for i in range(cluster.gpus.count)}
    claim = await cluster.whole.ask(
        "GET",
        f"/apis/resource.k8s.io/v1/namespaces/{cluster.whole.namespace}/resourceclaims/{running['status']['resourceClaimStatuses'][0]['resourceClaimName']}",
    )
    assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == by_uuid[share.uuid]["name"]
