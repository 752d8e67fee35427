"""The admission policies on a real API server: what each denies and what it admits, by the account of the request."""

from __future__ import annotations

import http.client
import json
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import manifests
from tests.support.cluster import binaries_or_skip
from tests.unit.services.admission.pods import container, pod
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster

WATCHER = ("kerf-system", "kerf-watcher")
ORDINARY_USER = ("default", "ordinary-user")
SLOT = {"kerf.dev/slot": "1"}


class As:
    """Requests as one user, by a client certificate."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        user, cluster = config["users"][0]["user"], config["clusters"][0]["cluster"]
        self._context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._context.load_cert_chain(user["client-certificate"], user["client-key"])
        self._port = plane.port

    def __call__(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Any]:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._context, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": kind})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def create(self, manifest: dict[str, Any], namespace: str = "default") -> tuple[int, Any]:
        return self("POST", f"/api/v1/namespaces/{namespace}/pods", manifest)

    def bind(self, name: str, former_path: bool = False, **annotations: str) -> tuple[int, Any]:
        """To node n1. By `former_path` as POST of `bindings`, which Kubernetes had before pods/binding."""
        meta = {
            "name": name,
            "annotations": {k.replace("__", "/").replace("_", "."): v for k, v in annotations.items()},
        }
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": meta,
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
        }
        where = "bindings" if former_path else f"pods/{name}/binding"
        return self("POST", f"/api/v1/namespaces/default/{where}", body)

    def annotate(self, name: str, key: str, value: str | None, subresource: str = "") -> tuple[int, Any]:
        path = f"/api/v1/namespaces/default/pods/{name}{subresource}"
        return self("PATCH", path, {"metadata": {"annotations": {key: value}}}, "application/merge-patch+json")


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    binaries = binaries_or_skip()
    with tempfile.TemporaryDirectory(prefix="kerf-kube-") as state:
        made = ControlPlane(Path(state), binaries=binaries).start()
        try:
            manifests.apply_all(made, "00-", "1", "20-", "21-", "22-", "23-")
            _give_everyone_pods(made)
            manifests.wait_for_policies(made)
            yield made
        finally:
            made.stop()


def _give_everyone_pods(plane: ControlPlane) -> None:
    """RBAC lets an ordinary user and the scheduler bind and annotate; only the policies stop them."""
    resources = ["pods", "pods/binding", "bindings", "pods/status"]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "pods-all"},
        "rules": [{"apiGroups": [""], "resources": resources, "verbs": ["*"]}],
    }
    users = [
        {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": n}
        for n in ("system:serviceaccount:default:ordinary-user", "system:kube-scheduler")
    ]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "pods-all"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "pods-all"},
        "subjects": users,
    }
    for manifest in (role, binding):
        assert manifests.apply(plane, manifest)[0] in (200, 201)


@pytest.fixture(scope="module")
def admin(plane: ControlPlane) -> As:
    return As(plane, plane.kubeconfig())


@pytest.fixture(scope="module")
def watcher(plane: ControlPlane) -> As:
    return As(plane, plane.service_account(*WATCHER))


@pytest.fixture(scope="module")
def ordinary_user(plane: ControlPlane) -> As:
    return As(plane, plane.service_account(*ORDINARY_USER))


def named(name: str, manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest | {"metadata": manifest["metadata"] | {"name": name, "namespace": "default"}}


def test_a_canonical_pod_needs_no_running_webhook(ordinary_user: As) -> None:
    """schedulerName, a slot for each container that uses GPUs, the toleration: all by the API server."""
    sidecar = container("side", memory="1Gi") | {"restartPolicy": "Always"}
    status, answer = ordinary_user.create(
        named("canonical", pod(container("a", gpu="1"), container("b"), init=[sidecar, container("setup")]))
    )
    assert status == 201, answer
    assert answer["spec"]["schedulerName"] == "kerf"
    slots = {
        c["name"]: c["resources"].get("requests", {}).get("kerf.dev/slot")
        for f in ("containers", "initContainers")
        for c in answer["spec"][f]
    }
    assert slots == {"a": "1", "b": None, "side": "1", "setup": None}
    assert {"key": "kerf.dev/managed", "operator": "Exists", "effect": "NoSchedule"} in answer["spec"]["tolerations"]


def test_mig_instances_are_a_gpu_resource_of_the_policies_too(ordinary_user: As) -> None:
    status, answer = ordinary_user.create(named("mig", pod(container("a", **{"kerf.dev/mig-1g.10gb": 2}))))
    assert status == 201, answer
    assert answer["spec"]["schedulerName"] == "kerf"
    assert answer["spec"]["containers"][0]["resources"]["requests"]["kerf.dev/slot"] == "1"


def test_a_pod_without_gpus_is_not_changed(ordinary_user: As) -> None:
    status, answer = ordinary_user.create(named("plain", pod(container())))
    assert (status, answer["spec"]["schedulerName"]) == (201, "default-scheduler")
    assert all(t["key"] != "kerf.dev/managed" for t in answer["spec"]["tolerations"])


NONSENSE = [
    ("node-name-set", pod(container(gpu=1), nodeName="n1")),
    ("static-pod", pod(container(gpu=1), nodeName="n1", annotations={"kubernetes.io/config.mirror": "x"})),
    ("other-scheduler", pod(container(gpu=1), schedulerName="volcano")),
    ("unknown-resource", pod(container(**{"kerf.dev/gpus": 1}))),
    ("unknown-resource", pod(container("a", gpu=1), init=[container("b", **{"kerf.dev/gpu-mem": 1})])),
    ("slot-without-gpu", pod(container(slot=1))),
    ("slot-count", pod(container(gpu=1, slot=2))),
    ("too-many-gpus", pod(container(gpu=65))),
    ("zero-gpus", pod(container(gpu=0, memory="1Gi"))),
    ("no-gpu-container", pod(container(gpu=0))),
    ("memory-too-small", pod(container(memory="16384"))),
    ("compute-too-large", pod(container(compute=101))),
    ("bad-annotation", pod(container(gpu=1), annotations={"kerf.dev/isolation": "strict"})),
    ("bad-annotation", pod(container(gpu=1), annotations={"kerf.dev/topology": "yes"})),
    ("bad-annotation", pod(container(gpu=1), annotations={"kerf.dev/policy": "pack"})),
    ("bad-annotation", pod(container(gpu=1), annotations={"kerf.dev/gpu-use": "busy=60"})),
    ("bad-annotation", pod(container(gpu=1), annotations={"kerf.dev/max-slowdown": "0.9"})),
    ("bad-annotation", pod(container(gpu=1), annotations={"kerf.dev/gpu-calls": "abc"})),
    ("bad-annotation", pod(container(gpu=1), annotations={"kerf.dev/gpu-transfer": "-1"})),
    ("bad-gang", pod(container(gpu=1), annotations={"kerf.dev/gang": "a"})),
    ("bad-gang", pod(container(gpu=1), annotations={"kerf.dev/gang": "a", "kerf.dev/gang-size": "0"})),
    ("spoofed-grant", pod(container(gpu=1), annotations={"kerf.dev/grant": "{}"})),
    ("spoofed-grant", pod(container(), annotations={"kerf.dev/grant": "{}"})),
    ("spoofed-grant", pod(container(gpu=1), annotations={"kerf.dev/gpu-time": "{}"})),
]


@pytest.mark.parametrize(("code", "manifest"), NONSENSE, ids=[f"{i}-{case[0]}" for i, case in enumerate(NONSENSE)])
def test_invalid_pods_are_refused_by_the_api_server_itself(
    ordinary_user: As, code: str, manifest: dict[str, Any]
) -> None:
    """With the same codes that the webhook and placement use."""
    status, answer = ordinary_user.create(named("nonsense", manifest))
    assert (status in (403, 422), manifests.code_of(answer.get("message", ""))) == (True, code), answer.get("message")


def test_only_the_watcher_binds_with_a_grant(watcher: As, ordinary_user: As) -> None:
    ordinary_user.create(named("to-bind", pod(container(gpu=1))))
    status, answer = ordinary_user.bind("to-bind", kerf_dev__grant="{}")
    assert status in (403, 422), answer
    assert manifests.code_of(answer["message"]) in ("spoofed-grant", "foreign-binding")
    status, answer = watcher.bind("to-bind", kerf_dev__grant='{"grant_id":"g"}')
    assert status == 201, answer
    bound = ordinary_user("GET", "/api/v1/namespaces/default/pods/to-bind")[1]
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]["kerf.dev/grant"]) == ("n1", '{"grant_id":"g"}')


def test_an_ordinary_user_cannot_bind_pods(ordinary_user: As) -> None:
    ordinary_user.create(named("foreign", pod(container(gpu=1))))
    status, answer = ordinary_user.bind("foreign")
    assert (status in (403, 422), manifests.code_of(answer["message"])) == (True, "foreign-binding")


@pytest.mark.parametrize("former_path", [False, True])
def test_the_listed_schedulers_can_still_bind_and_write_no_grant(
    plane: ControlPlane, ordinary_user: As, former_path: bool
) -> None:
    scheduler = As(plane, plane.kubeconfig("system:kube-scheduler"))
    name = f"theirs-{former_path}".lower()
    ordinary_user.create(named(name, pod(container())))
    _, answer = scheduler.bind(name, former_path, kerf_dev__grant="{}")
    assert manifests.code_of(answer["message"]) == "spoofed-grant"
    assert scheduler.bind(name, former_path)[0] == 201


@pytest.mark.parametrize("subresource", ["", "/status"])
def test_only_the_watcher_changes_a_grant(watcher: As, ordinary_user: As, subresource: str) -> None:
    """Through no door: annotations can be written through pods/status too."""
    name = f"granted{subresource.replace('/', '-')}"
    ordinary_user.create(named(name, pod(container(gpu=1))))
    assert watcher.bind(name, kerf_dev__grant="{}")[0] == 201
    for value in ('{"more":1}', None):
        status, answer = ordinary_user.annotate(name, "kerf.dev/grant", value, subresource)
        assert (status in (403, 422), manifests.code_of(answer.get("message", ""))) == (True, "spoofed-grant"), answer
    assert ordinary_user.annotate(name, "team", "blue", subresource)[0] == 200
    assert watcher.annotate(name, "kerf.dev/grant", '{"adopted":1}', subresource)[0] == 200


def test_fields_on_which_placement_depends_are_immutable_once_bound(watcher: As, ordinary_user: As) -> None:
    ordinary_user.create(named("settled", pod(container(gpu=1))))
    assert ordinary_user.annotate("settled", "kerf.dev/isolation", "firm")[0] == 200
    assert watcher.bind("settled")[0] == 201
    for annotation, value in (("isolation", "hard"), ("gpu-model", "")):  # an empty one is not a missing one
        status, answer = ordinary_user.annotate("settled", f"kerf.dev/{annotation}", value)
        assert (status in (403, 422), manifests.code_of(answer["message"])) == (True, "bound-annotation")


def test_the_watcher_may_touch_a_pending_pod(watcher: As, ordinary_user: As) -> None:
    """Rule R5's PATCH passes every policy."""
    ordinary_user.create(named("touched", pod(container(gpu=1))))
    assert watcher.annotate("touched", "kerf.dev/touched", "t1")[0] == 200
