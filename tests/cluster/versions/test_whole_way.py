"""The whole way of a pod on each version: admitted, bound under preconditions, released; and what must never happen."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import structlog

from services.watcher.kube_source import KubeSource
from shared.contracts import commands as c
from shared.kube import resources
from shared.kube.writes import Writes
from shared.model.grant import decode_grant
from tests.cluster.versions.site import Site, admission, skip_below, transport
from tests.support import manifests
from tests.support.waiting import eventually
from tests.support.whole import WITHIN_S, Whole, whole

ASKS: dict[str, dict[str, str]] = {
    "whole": {"gpu": "1"},
    "memory": {"gpu_memory": "16Gi"},
    "compute": {"gpu_compute": "30"},
    "percent": {"gpu_memory_percent": "20"},
}


@pytest.mark.parametrize("kind", ASKS)
async def test_a_pod_is_admitted_bound_with_its_grant_and_released(world: Whole, kind: str) -> None:
    """Two pods of two whole GPUs each fill the nodes; what a deleted one had goes to the pod of this kind."""
    await world.pod("one", gpu="2")
    await world.pod("two", gpu="2")
    for name in ("one", "two"):
        await world.bound(name)
    await world.pod("next", **ASKS[kind])
    assert (await world.event("next", "FailedScheduling"))["type"] == "Warning"
    await world.delete_pod("one")
    seen = await world.bound("next")
    grant = decode_grant(seen["metadata"]["annotations"]["kerf.dev/grant"])
    assert [len(part.gpus) for part in grant.containers.values()] == [1]
    assert world.made.failed() == ""


@pytest.mark.parametrize("watch_list", [True, False], ids=["watchlist", "paged"])
async def test_every_kind_is_followed_under_the_watchers_own_account(kube: Site, watch_list: bool) -> None:
    """Kinds that this version lacks are empty; of kinds with several versions the server is asked."""
    async with transport(kube, "kerf-watcher") as client:
        source = KubeSource(client, structlog.get_logger(), reporter="test", watch_list=watch_list)
        following = asyncio.create_task(source.run(lambda _: None))
        try:
            await asyncio.wait_for(source.wait_synced(), WITHIN_S)
            assert source.detail == "every kind is followed"
            groups = source.reflectors[resources.KUBERNETES_POD_GROUP.title].resource
            assert groups.version == {36: "v1alpha2"}.get(kube.number, "v1beta1")
        finally:
            following.cancel()


async def test_a_stale_binding_is_refused(kube: Site) -> None:
    """R3: at another resourceVersion, or for another pod of that name, nothing is bound and nothing is written."""
    async with admission(kube):
        await asyncio.to_thread(_namespace, kube, "stale")
        made = await asyncio.to_thread(_pod, kube, "stale", "p")
        order = c.Bind(
            uid=made["metadata"]["uid"], namespace="stale", name="p",
            resource_version=made["metadata"]["resourceVersion"], node="n", grant="{}",
        )  # fmt: skip
        async with transport(kube, "kerf-watcher") as client:
            writes = Writes(client, reporter="test")
            touched = await writes.pods.annotate("stale", "p", order.uid, {"kerf.dev/touched": "1"})
            assert touched.outcome == "done", touched
            late = await writes.bindings.bind(order)
            version = kube.call("GET", "/api/v1/namespaces/stale/pods/p")["metadata"]["resourceVersion"]
            other = await writes.bindings.bind(
                c.Bind(uid="another", namespace="stale", name="p", resource_version=version, node="n", grant="{}")
            )
    assert (late.outcome, other.outcome) == ("conflict", "conflict")
    seen = kube.call("GET", "/api/v1/namespaces/stale/pods/p")
    assert "nodeName" not in seen["spec"]
    assert "kerf.dev/grant" not in seen["metadata"].get("annotations", {})


async def test_only_the_watcher_binds_and_writes_grants(kube: Site) -> None:
    async with admission(kube):
        await asyncio.to_thread(_namespace, kube, "foreign")
        await asyncio.to_thread(_pod, kube, "foreign", "p")
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    path = "/api/v1/namespaces/foreign/pods/p"
    assert _refused(kube, "POST", f"{path}/binding", binding) == "foreign-binding"
    note = {"metadata": {"annotations": {"kerf.dev/grant": "{}"}}}
    assert _refused(kube, "PATCH", path, note) == "spoofed-grant"
    assert _refused(kube, "PATCH", f"{path}/status", note) == "spoofed-grant"


async def test_a_resource_quota_counts_slices(kube: Site) -> None:
    """1500 thousandths: a whole GPU and half of one by compute; the next is refused at its creation."""
    async with admission(kube):
        await asyncio.to_thread(_namespace, kube, "quota")
        hard = {"requests.kerf.dev/quota-gpu-milli": "1500"}
        quotas = "/api/v1/namespaces/quota/resourcequotas"
        kube.call("POST", quotas, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}}, expect=201)
        # The quota controller does not run here; it writes the first status.
        status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
        kube.call("PATCH", f"{quotas}/gpus/status", status, kind="application/merge-patch+json")
        await asyncio.to_thread(_pod, kube, "quota", "one", {"kerf.dev/gpu": "1"})
        await asyncio.to_thread(_pod, kube, "quota", "half", {"kerf.dev/gpu-compute": "50"})
        over = _document("over", {"kerf.dev/gpu-compute": "10"})
        code, answer = await asyncio.to_thread(kube.plane.request, "POST", "/api/v1/namespaces/quota/pods", over)
    assert (code, b"exceeded quota" in answer) == (403, True), answer
    assert kube.call("GET", f"{quotas}/gpus")["status"]["used"] == {"requests.kerf.dev/quota-gpu-milli": "1500"}


async def test_a_token_names_the_node_of_its_pod(kube: Site) -> None:
    """By that the operator lets an agent speak for its node alone: kubernetes/kubernetes pkg/features,
    ServiceAccountTokenPodNodeInfo (1.32: stable)."""
    _namespace(kube, "tokens")
    account = {"metadata": {"name": "agent"}}
    kube.call("POST", "/api/v1/namespaces/tokens/serviceaccounts", account, expect=201)
    kube.call("POST", "/api/v1/nodes", {"metadata": {"name": "token-node"}}, expect=201)
    spec = {"nodeName": "token-node", "serviceAccountName": "agent", "containers": [{"name": "c", "image": "example"}]}
    made = kube.call("POST", "/api/v1/namespaces/tokens/pods", {"metadata": {"name": "a"}, "spec": spec}, expect=201)
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "a", "uid": made["metadata"]["uid"]}
    asked = {"spec": {"audiences": ["kerf-nats"], "expirationSeconds": 600, "boundObjectRef": bound}}
    token = kube.call("POST", "/api/v1/namespaces/tokens/serviceaccounts/agent/token", asked, expect=201)
    review = {"spec": {"token": token["status"]["token"], "audiences": ["kerf-nats"]}}
    said = kube.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review, expect=201)["status"]
    assert said["authenticated"] is True
    assert said["user"]["extra"]["authentication.kubernetes.io/node-name"] == ["token-node"]


async def test_a_claim_is_allocated_where_the_api_is_stable(kube: Site) -> None:
    skip_below(kube, 34, "resource.k8s.io/v1")
    async with admission(kube), whole(kube.plane, f"claims-{kube.number}", nodes=1, dra=True) as world:
        exactly = {"deviceClassName": "gpu.kerf.dev", "capacity": {"requests": {"memory": "16Gi"}}}
        claim = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
        await world.create("ResourceClaim", "mine", claim)
        container = {"name": "c", "image": "example", "resources": {"claims": [{"name": "mine"}]}}
        spec = {"containers": [container], "resourceClaims": [{"name": "mine", "resourceClaimName": "mine"}]}
        await world.create("Pod", "p", {"spec": spec | {"schedulerName": "kerf"}})
        await world.bound("p")
        seen = await world.seen("ResourceClaim", "mine")
        assert [one["driver"] for one in seen["status"]["allocation"]["devices"]["results"]] == ["gpu.kerf.dev"]

        async def published() -> bool:
            slices = await world.ask("GET", "/apis/resource.k8s.io/v1/resourceslices")
            return [one["spec"]["nodeName"] for one in slices["items"]] == [f"{world.namespace}-0"]

        await eventually(published, within_s=WITHIN_S, what="the node's ResourceSlice")


def _namespace(kube: Site, name: str) -> None:
    kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}}, expect=201)


def _document(name: str, limits: dict[str, str] | None = None) -> dict[str, Any]:
    container = {"name": "c", "image": "example", "resources": {"limits": limits or {"kerf.dev/gpu": "1"}}}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


def _pod(kube: Site, namespace: str, name: str, limits: dict[str, str] | None = None) -> Any:
    return kube.call("POST", f"/api/v1/namespaces/{namespace}/pods", _document(name, limits), expect=201)


def _refused(kube: Site, method: str, path: str, body: Any) -> str:
    """The code of the refusal."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    status, answer = kube.plane.request(method, path, body, content_type=kind)
    assert status in (403, 422), (status, answer)
    return manifests.code_of(json.loads(answer)["message"])
