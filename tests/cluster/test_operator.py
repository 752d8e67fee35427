"""The operator on a real API server: what it makes, what it puts back, and how soon."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from cryptography import x509

from services.operator.config import Config
from services.operator.service import Operator
from shared.service import Context, running
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster

HEALS_WITHIN_S = 10.0
WEBHOOK = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingWebhookConfiguration",
    "webhooks": [
        {
            "name": f"{name}.kerf.dev",
            "clientConfig": {"service": {"name": "kerf-admission", "namespace": "kerf-system", "path": "/mutate"}},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "rules": [
                {"apiGroups": ["kerf.test"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}
            ],
        }
        for name in ("dialects", "plain-nvidia")
    ],
}


class Site:
    """A namespace of the API server with an installation in it."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self.webhook = f"kerf-{namespace}"
        self.call("POST", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
                  WEBHOOK | {"metadata": {"name": self.webhook}})  # fmt: skip

    def call(self, method: str, path: str, body: Any = None, *, patch: bool = False) -> tuple[int, Any]:
        kind = "application/merge-patch+json" if patch else "application/json"
        status, answer = self.plane.request(method, path, body, content_type=kind)
        return status, json.loads(answer)

    def path(self, plural: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{plural}/{name}".rstrip("/")

    def data(self, plural: str, name: str) -> dict[str, str]:
        status, found = self.call("GET", self.path(plural, name))
        data: dict[str, str] = found.get("data", {}) if status == 200 else {}
        return {k: base64.b64decode(v).decode() for k, v in data.items()} if plural == "secrets" else data

    def bundles(self) -> set[str]:
        _, found = self.call(
            "GET", f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{self.webhook}"
        )
        return {base64.b64decode(w["clientConfig"].get("caBundle", "")).decode() for w in found["webhooks"]}

    def config(self, **settings: Any) -> Config:
        kubeconfig = str(self.plane.kubeconfig())
        return Config(kubeconfig=kubeconfig, namespace=self.namespace, webhook=self.webhook, lease_s=2, **settings)

    async def until(self, check: Callable[[], Any]) -> Any:
        return await eventually(check, within_s=HEALS_WITHIN_S)


@pytest.fixture
def site(control_plane: ControlPlane, namespace: str) -> Site:
    return Site(control_plane, namespace)


@pytest.fixture
async def operator(site: Site) -> AsyncIterator[Context]:
    async with running(Operator, site.config()) as ctx:
        await site.until(lambda: site.data("configmaps", "kerf-status"))
        yield ctx


async def test_an_empty_namespace_gets_all_that_kerf_needs(site: Site, operator: Context) -> None:
    await site.until(lambda: site.data("secrets", "kerf-nats-tls") and "" not in site.bundles())
    users = site.data("secrets", "kerf-nats")
    assert len(set(users.values())) == len(users) == 11
    bundle = site.data("configmaps", "kerf-ca")["ca.crt"]
    (authority,) = x509.load_pem_x509_certificates(bundle.encode())
    for name in ("kerf-admission", "kerf-nats-tls"):
        leaf = x509.load_pem_x509_certificate(site.data("secrets", name)["tls.crt"].encode())
        leaf.verify_directly_issued_by(authority)
    assert site.bundles() == {bundle}
    assert site.data("configmaps", "kerf-schedulers") == {"accounts": "system:kube-scheduler"}


@pytest.mark.parametrize("name", ["kerf-nats", "kerf-ca", "kerf-admission", "kerf-nats-tls"])
async def test_a_deleted_secret_is_put_back_as_it_was(site: Site, operator: Context, name: str) -> None:
    await site.until(lambda: site.data("secrets", "kerf-nats-tls"))
    before = site.data("secrets", name)
    site.call("DELETE", site.path("secrets", name))
    await site.until(lambda: site.data("secrets", name) == before)


async def test_a_ca_bundle_that_is_lost_comes_back(site: Site, operator: Context) -> None:
    await site.until(lambda: "" not in site.bundles())
    before = site.bundles()
    path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{site.webhook}"
    site.call("DELETE", path)
    site.call("POST", path.rsplit("/", 1)[0], WEBHOOK | {"metadata": {"name": site.webhook}})
    await site.until(lambda: site.bundles() == before)


async def test_a_removed_password_is_made_anew_and_the_others_stay(site: Site, operator: Context) -> None:
    before = await site.until(lambda: site.data("secrets", "kerf-nats"))
    site.call("PATCH", site.path("secrets", "kerf-nats"), {"data": {"watcher": None}}, patch=True)
    await site.until(lambda: site.data("secrets", "kerf-nats").get("watcher", before["watcher"]) != before["watcher"])
    after = site.data("secrets", "kerf-nats")
    assert {key for key in after if after[key] != before[key]} == {"watcher"}


async def test_the_administrators_list_of_schedulers_stays(site: Site) -> None:
    listed = {"accounts": "system:kube-scheduler system:serviceaccount:volcano:scheduler"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kerf-schedulers"}, "data": listed}
    site.call("POST", site.path("configmaps"), body)
    async with running(Operator, site.config()):
        await site.until(lambda: site.data("configmaps", "kerf-status"))
        assert site.data("configmaps", "kerf-schedulers") == listed


async def test_a_standby_takes_over(site: Site) -> None:
    """Two operators: one leads; when it ends, the other heals what is deleted."""
    async with running(Operator, site.config()):
        async with running(Operator, site.config()):
            await site.until(lambda: site.data("secrets", "kerf-nats-tls"))
        before = site.data("secrets", "kerf-nats")
        site.call("DELETE", site.path("secrets", "kerf-nats"))
        await site.until(lambda: site.data("secrets", "kerf-nats") == before)
    async with running(Operator, site.config()):
        site.call("DELETE", site.path("configmaps", "kerf-ca"))
        await site.until(lambda: site.data("configmaps", "kerf-ca"))
