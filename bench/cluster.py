"""A real control plane made ready for a bench: policies applied, nodes created, pods made, counted and removed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from shared.kube.access import load_access
from shared.kube.client import transport_for
from shared.kube.transport import Transport
from tools.control_plane import ControlPlane

K8S = Path(__file__).resolve().parent.parent / "k8s"
NAMESPACE = "bench"
POLICY_FILES = (
    "00-namespace.yaml",
    "10-accounts.yaml",
    "11-watcher-rbac.yaml",
    "20-policy-canonical.yaml",
    "21-policy-request.yaml",
    "22-policy-grant.yaml",
    "23-policy-binding.yaml",
)
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{ns}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{ns}/configmaps",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings",
    "MutatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}


def apply_policies(plane: ControlPlane) -> None:
    """Accounts, the watcher's rights and every policy in the API server, as k8s/ has them."""
    for file, document in _documents():
        path = _path(document)
        status, body = plane.request("POST", path, document)
        if status not in (200, 201, 409):
            raise RuntimeError(f"{file}: {document['kind']} {document['metadata']['name']}: {status} {body[:300]!r}")
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})


def remove_policies(plane: ControlPlane) -> None:
    """The admission policies alone."""
    for file, document in _documents():
        if "AdmissionPolicy" in document["kind"]:
            status, body = plane.request("DELETE", f"{_path(document)}/{document['metadata']['name']}")
            if status not in (200, 404):
                raise RuntimeError(f"{file}: {document['kind']}: {status} {body[:300]!r}")


def _documents() -> list[tuple[str, dict[str, Any]]]:
    return [
        (file, document)
        for file in POLICY_FILES
        for document in yaml.safe_load_all((K8S / file).read_text())
        if document is not None
    ]


def _path(document: dict[str, Any]) -> str:
    return PATHS[document["kind"]].format(ns=document["metadata"].get("namespace", ""))


async def transport(plane: ControlPlane, *, watcher: bool = False, connections: int = 64) -> Transport:
    config = plane.service_account("kerf-system", "kerf-watcher") if watcher else plane.kubeconfig()
    return transport_for(await load_access(str(config)), max_connections=connections)


async def in_flight(count: int, limit: int, one: Callable[[int], Any]) -> None:
    """Runs one(0) to one(count - 1), at most `limit` at a time, in order of start."""
    numbers = iter(range(count))

    async def worker() -> None:
        for i in numbers:
            await one(i)

    await asyncio.gather(*(worker() for _ in range(limit)))


async def create_nodes(kube: Transport, count: int, *, gpus: int, extended: str) -> None:
    """Ready nodes with room for everything but GPUs, and `gpus` of an extended resource for other schedulers."""
    amounts = {"cpu": "256", "memory": "2048Gi", "pods": "512", "ephemeral-storage": "4Ti", extended: str(gpus)}

    async def one(i: int) -> None:
        name = f"node-{i}"
        node = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kerf.dev/managed": "true"}}}
        await must(kube, "POST", "/api/v1/nodes", node)
        status = {
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        }
        answer = await kube.request(
            "PATCH",
            f"/api/v1/nodes/{name}/status",
            msgspec.json.encode(status),
            content_type="application/merge-patch+json",
        )
        if answer.status != 200:
            raise RuntimeError(f"status of {name}: {answer.status} {answer.body[:200]!r}")

    await in_flight(count, 16, one)


async def must(kube: Transport, method: str, path: str, body: Any) -> bytes:
    answer = await kube.request(method, path, msgspec.json.encode(body), timeout_s=30.0)
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path}: {answer.status} {answer.body[:300]!r}")
    return answer.body


async def pods(kube: Transport) -> list[dict[str, Any]]:
    answer = await kube.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods", timeout_s=60.0)
    found: list[dict[str, Any]] = msgspec.json.decode(answer.body)["items"]
    return found


async def remove_pods(kube: Transport) -> None:
    """All of them, at once and for good."""
    deadline = time.monotonic() + 120
    while True:
        await kube.request(
            "DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods", b'{"gracePeriodSeconds":0}', timeout_s=120.0
        )
        if not await pods(kube):
            return
        if time.monotonic() > deadline:
            raise RuntimeError("pods do not go away")
        await asyncio.sleep(0.2)
