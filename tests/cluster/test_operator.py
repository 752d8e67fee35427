"""The operator on a real API server: what it makes, what it puts back, and how soon."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from cryptography import x509

from services.operator.config import Config
from services.operator.service import Operator
from services.operator.uninstall import StillRunning, Uninstall
from shared.kube.client import connect
from shared.kube.writes import Writes
from shared.service import Context, running
from tests.support import manifests
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster

WITHIN_S = 40.0
"""Operators promise 10 s; a machine that runs many tests at once is given more."""
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
        quick = {"lease_s": 2, "check_s": 1, "leaving_s": 0.5}
        kubeconfig = str(self.plane.kubeconfig())
        return Config(kubeconfig=kubeconfig, namespace=self.namespace, webhook=self.webhook, **(quick | settings))

    async def until(self, check: Callable[[], Any]) -> Any:
        return await eventually(check, within_s=WITHIN_S)


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
    of_nodes = {"remote_grants_key", "nodes_ca", "nodes_ca_key"}
    assert users.keys() >= of_nodes
    assert len(set(users.values())) == len(users) == 12 + len(of_nodes)
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


def node(site: Site, name: str, labels: dict[str, str], *, taints: Any = None) -> str:
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
    }
    assert site.call("POST", "/api/v1/nodes", body)[0] == 201
    return f"/api/v1/nodes/{name}"


def looks(site: Site, path: str) -> tuple[set[str], set[str]]:
    """Kerf's labels and taints on a node."""
    _, found = site.call("GET", path)
    keys = {taint["key"] for taint in found["spec"].get("taints", ())}
    labels = found["metadata"].get("labels", {})
    return {label for label in labels if "kerf" in label or "nvidia" in label}, keys


@pytest.fixture
def node_name(site: Site) -> Iterator[str]:
    name = f"{site.namespace}.example.com"
    yield name
    site.call("DELETE", f"/api/v1/nodes/{name}")


@pytest.mark.parametrize("label", ["kerf.dev/managed", "gpushare"])
async def test_a_label_enrols_a_node_and_its_removal_releases_it(
    site: Site, operator: Context, node_name: str, label: str
) -> None:
    path = node(site, node_name, {label: "true"}, taints=[{"key": "mine", "effect": "NoSchedule"}])
    mine = {label} & {"kerf.dev/managed"}
    await site.until(lambda: looks(site, path) == ({"kerf.dev/enrolled", *mine}, {"mine", "kerf.dev/managed"}))
    events = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={node_name}"
    await site.until(lambda: [e["reason"] for e in site.call("GET", events)[1]["items"]] == ["Enrolled"])
    site.call("PATCH", path, {"metadata": {"labels": {label: None}}}, patch=True)
    await site.until(lambda: looks(site, path) == (set(), {"mine"}))


async def test_a_node_with_running_grants_keeps_its_agent_and_gets_no_new_pods(
    site: Site, operator: Context, node_name: str
) -> None:
    path = node(site, node_name, {"kerf.dev/managed": "true"})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": {"kerf.dev/grant": "{}"}},
           "spec": {"nodeName": node_name, "containers": [{"name": "c", "image": "i"}]}}  # fmt: skip
    assert site.call("POST", site.path("pods"), pod)[0] == 201
    await site.until(lambda: looks(site, path)[1] == {"kerf.dev/managed"})
    site.call("PATCH", path, {"metadata": {"labels": {"kerf.dev/managed": None}}}, patch=True)
    await site.until(lambda: looks(site, path) == ({"kerf.dev/enrolled"}, {"kerf.dev/managed", "kerf.dev/leaving"}))
    site.call("DELETE", site.path("pods", "p"), {"gracePeriodSeconds": 0})
    await site.until(lambda: looks(site, path) == (set(), set()))


async def test_a_node_keeps_its_taints_until_its_agent_has_ended(site: Site, operator: Context, node_name: str) -> None:
    path = node(site, node_name, {"kerf.dev/managed": "true"})
    agent = {"apiVersion": "v1", "kind": "Pod",
             "metadata": {"name": "agent", "labels": {"app.kubernetes.io/part-of": "kerf"}},
             "spec": {"nodeName": node_name, "serviceAccountName": "kerf-node-agent",
                      "containers": [{"name": "c", "image": "i"}]}}  # fmt: skip
    assert site.call("POST", site.path("pods"), agent)[0] == 201
    await site.until(lambda: looks(site, path)[1] == {"kerf.dev/managed"})
    site.call("PATCH", path, {"metadata": {"labels": {"kerf.dev/managed": None}}}, patch=True)
    await site.until(lambda: looks(site, path) == (set(), {"kerf.dev/managed", "kerf.dev/leaving"}))
    site.call("DELETE", site.path("pods", "agent"), {"gracePeriodSeconds": 0})
    await site.until(lambda: looks(site, path) == (set(), set()))


async def test_only_labels_that_the_watcher_wrote_leave_with_the_node(
    site: Site, operator: Context, node_name: str
) -> None:
    path = node(site, node_name, {"kerf.dev/managed": "true", "nvidia.com/gpu.family": "hopper"})
    transport = await connect(str(site.plane.kubeconfig()), user_agent="kerf-watcher")
    await Writes(transport, reporter="t").objects.label_node(node_name, {"nvidia.com/gpu.count": "8"})
    await transport.close()
    await site.until(lambda: "kerf.dev/enrolled" in looks(site, path)[0])
    site.call("PATCH", path, {"metadata": {"labels": {"kerf.dev/managed": None}}}, patch=True)
    await site.until(lambda: looks(site, path)[0] == {"nvidia.com/gpu.family"})


async def test_a_scheduler_that_is_not_listed_is_reported(site: Site, operator: Context) -> None:
    name = site.namespace
    rbac = "/apis/rbac.authorization.k8s.io/v1/"
    rules = [{"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}]
    site.call("POST", rbac + "clusterroles", {"metadata": {"name": name}, "rules": rules})
    subjects = [{"kind": "ServiceAccount", "name": "volcano", "namespace": name}]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    body = {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects}
    site.call("POST", rbac + "clusterrolebindings", body)
    account = f"system:serviceaccount:{name}:volcano"

    def report() -> str:
        return site.data("configmaps", "kerf-status")["summary"]

    assert account not in report()  # it is not in use
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "scheduler"},
           "spec": {"serviceAccountName": "volcano", "containers": [{"name": "c", "image": "i"}]}}  # fmt: skip
    assert site.call("POST", site.path("pods"), pod)[0] == 201
    await site.until(lambda: f"{account} (ClusterRoleBinding {name})" in report())
    assert "kube-scheduler" not in report()
    listed = {"data": {"accounts": f"system:kube-scheduler {account}"}}
    site.call("PATCH", site.path("configmaps", "kerf-schedulers"), listed, patch=True)
    await site.until(lambda: account not in report())
    site.call("DELETE", rbac + f"clusterrolebindings/{name}")


async def test_others_that_offer_gpus_of_an_enrolled_node_are_reported(site: Site, node_name: str) -> None:
    """With the rights of the manifests: the operator reads ResourceSlices by them."""
    config = msgspec.structs.replace(site.config(), kubeconfig=give_rights(site))
    path = node(site, node_name, {"kerf.dev/managed": "true"})
    slices = "/apis/resource.k8s.io/v1/resourceslices"

    def publish(driver: str) -> str:
        pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node_name, "pool": pool, "devices": [{"name": "gpu-0"}]}
        status, found = site.call("POST", slices, {"metadata": {"name": f"{site.namespace}-{driver}"}, "spec": spec})
        assert status == 201, found
        return f"{slices}/{site.namespace}-{driver}"

    def offer(amount: str) -> None:
        body = {"status": {"allocatable": {"nvidia.com/gpu": amount}, "capacity": {"nvidia.com/gpu": "8"}}}
        assert site.call("PATCH", f"{path}/status", body, patch=True)[0] == 200

    def message(kind: str) -> str:
        """Of the condition; empty where it is met."""
        told = json.loads(site.data("configmaps", "kerf-status").get("conditions", "[]"))
        return next((one["message"] for one in told if one["type"] == kind and one["status"] == "False"), "")

    def events(reason: str) -> list[Any]:
        found = site.call("GET", f"/api/v1/namespaces/{site.namespace}/events")[1]["items"]
        return [one for one in found if one["reason"] == reason]

    made = [publish("gpu.kerf.dev"), publish("compute-domain.nvidia.com")]
    try:
        async with running(Operator, config):
            await site.until(lambda: "kerf.dev/enrolled" in looks(site, path)[0])
            offer("8")
            await site.until(lambda: f"nvidia.com/gpu: {node_name};" in message("DevicePluginAlone"))
            assert message("DraDriverAlone") == "", "neither Kerf's slices nor those without GPUs count"
            made.append(publish("gpu.nvidia.com"))
            await site.until(lambda: f"twice: {node_name};" in message("DraDriverAlone"))
            await site.until(lambda: len(events("OtherDevicePlugin")) == len(events("OtherDraDriver")) == 1)
            offer("0")
            site.call("DELETE", made.pop())
            await site.until(lambda: message("DevicePluginAlone") == message("DraDriverAlone") == "")
    finally:
        for one in made:
            site.call("DELETE", one)


async def test_uninstalling_leaves_nothing(site: Site, node_name: str) -> None:
    path = node(site, node_name, {"kerf.dev/managed": "true"})
    said: list[str] = []
    transport = await connect(str(site.plane.kubeconfig()))
    async with running(Operator, site.config()):
        await site.until(lambda: site.data("secrets", "kerf-nats-tls") and "" not in site.bundles())
        await site.until(lambda: looks(site, path)[1])
        with pytest.raises(StillRunning, match="held by a running operator"):
            await Uninstall(transport, site.config(), said.append, structlog.get_logger(), wait_s=1).run()
    site.call("POST", site.path("persistentvolumeclaims"), {
        "metadata": {"name": "data-kerf-nats-0", "labels": {"app.kubernetes.io/part-of": "kerf"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})  # fmt: skip
    assert await Uninstall(transport, site.config(), said.append, structlog.get_logger(), wait_s=10).run()
    await transport.close()
    assert looks(site, path) == ({"kerf.dev/managed"}, set())
    assert site.bundles() == {""}
    for plural in ("secrets", "configmaps"):
        assert site.call("GET", site.path(plural))[1]["items"] == []
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{site.namespace}/leases"
    assert site.call("GET", leases)[1]["items"] == []
    assert any("left: PersistentVolumeClaim data-kerf-nats-0" in line for line in said)


UNINSTALL_RULES = [
    {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["list"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list", "delete"]},
]
"""What the uninstalling job has besides; its manifests are hooks of the chart."""


def give_rights(site: Site) -> str:
    """Returns the kubeconfig of an account with the rights that the manifests give the operator, and no others."""
    rbac, space = "/apis/rbac.authorization.k8s.io/v1", site.namespace
    subject = [{"kind": "ServiceAccount", "name": "kerf-operator", "namespace": space}]
    name = f"operator-{space}"
    for role in manifests.load("12-"):
        kind = role["kind"]
        if kind not in ("ClusterRole", "Role"):
            continue
        where, more = ("", UNINSTALL_RULES) if kind == "ClusterRole" else (f"/namespaces/{space}", [])
        rules = json.loads(json.dumps(role["rules"]).replace("kerf-dialects", site.webhook))
        path = f"{rbac}{where}/{kind.lower()}"
        assert site.call("POST", f"{path}s", {"metadata": {"name": name}, "rules": rules + more})[0] == 201
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": subject}
        assert site.call("POST", f"{path}bindings", binding)[0] == 201
    return str(site.plane.service_account(space, "kerf-operator"))


async def test_the_operator_works_and_uninstalls_with_its_own_accounts_rights(site: Site, node_name: str) -> None:
    config = msgspec.structs.replace(site.config(), kubeconfig=give_rights(site))
    path = node(site, node_name, {"kerf.dev/managed": "true"})
    async with running(Operator, config) as ctx:
        await site.until(lambda: site.data("secrets", "kerf-nats-tls") and "" not in site.bundles())
        await site.until(lambda: "kerf.dev/managed" in looks(site, path)[1])
        site.call("DELETE", site.path("configmaps", "kerf-ca"))
        await site.until(lambda: site.data("configmaps", "kerf-ca"))
        await site.until(lambda: ctx.health.report()["parts"]["cluster"]["detail"] == "")
        metrics = ctx.metrics.render().decode()
        assert 'outcome="refused"' not in metrics
    said: list[str] = []
    transport = await connect(config.kubeconfig)
    assert await Uninstall(transport, config, said.append, structlog.get_logger(), wait_s=10).run(), said
    await transport.close()
    assert site.call("GET", site.path("secrets"))[1]["items"] == []


async def test_what_is_deleted_is_back_in_time_though_the_leader_was_killed(site: Site, tmp_path: Path) -> None:
    """Two processes with the settings of an installation; kill -9 of the one that leads."""
    env = os.environ | {
        "KUBECONFIG": str(site.plane.kubeconfig()),
        "KERF_OPERATOR_NAMESPACE": site.namespace,
        "KERF_OPERATOR_WEBHOOK": site.webhook,
    }
    command = (sys.executable, "-m", "services.operator")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{site.namespace}/leases/kerf-operator"

    def leads(process: asyncio.subprocess.Process) -> bool:
        status, found = site.call("GET", lease)
        return status == 200 and f"-{process.pid}-" in found["spec"]["holderIdentity"]

    with (tmp_path / "log").open("wb") as log:
        both = [await asyncio.create_subprocess_exec(*command, env=env, stdout=log, stderr=log) for _ in range(2)]
    try:
        await eventually(lambda: site.data("secrets", "kerf-nats-tls"), within_s=90)
        await eventually(lambda: (tmp_path / "log").read_text().count("cluster_known") == 2, within_s=90)
        before = site.data("secrets", "kerf-nats")
        leader, standby = both if leads(both[0]) else reversed(both)
        leader.kill()
        site.call("DELETE", site.path("secrets", "kerf-nats"))
        await site.until(lambda: site.data("secrets", "kerf-nats") == before)
        assert leads(standby)
    finally:
        for process in both:
            if process.returncode is None:
                process.kill()
            await process.wait()
