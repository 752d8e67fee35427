"""What no actor may do, tried on a real API server with the manifests' accounts and on a real NATS with their users.

A row is an action. That an agent's token makes it the user of its own node is in test_operator_nats.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, Incoming
from shared.bus.provision import provision
from shared.contracts import permissions, queries, subjects
from tests.cluster.test_admission_policies import As
from tests.support import manifests
from tests.support.cluster import binaries_or_skip
from tests.support.waiting import eventually
from tests.unit.services.admission.pods import container, pod
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
PODS, NODES = "/api/v1/namespaces/team-a/pods", "/api/v1/nodes"
SYSTEM = "/api/v1/namespaces/kerf-system"
BINDING = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
GRANTED = pod(container(gpu="1"), annotations={"kerf.dev/grant": "{}"})
WITH_GRANT = {"metadata": {"annotations": {"kerf.dev/grant": "{}"}}}
ALL_ACCOUNTS = {"data": {"accounts": "*"}}
OF_TEAM_B = subjects.event_in_namespace("pod", "bound", "team-b")
RULES = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
ROLE_REF = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
CLUSTER_ADMIN = {"metadata": {"name": "more"}, "roleRef": ROLE_REF}
MORE_RIGHTS = {"metadata": {"name": "more"}, "rules": RULES}
RBAC = "/apis/rbac.authorization.k8s.io/v1"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/kerf-dialects"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/kerf-grant"
TENANT, OTHER = "team-a/tenant", "kerf-system/kerf-"


def named(name: str, manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest | {"metadata": manifest["metadata"] | {"name": name, "namespace": "team-a"}}


IN_KUBERNETES: list[tuple[str, str, str, str, Any]] = [
    ("an agent binds a pod", f"{OTHER}node-agent", "POST", f"{PODS}/p/binding", BINDING),
    ("an agent reads pods", f"{OTHER}node-agent", "GET", PODS, None),
    ("an agent reads Secrets", f"{OTHER}node-agent", "GET", f"{SYSTEM}/secrets", None),
    ("placement binds a pod itself", f"{OTHER}placement", "POST", f"{PODS}/p/binding", BINDING),
    ("placement writes on a node", f"{OTHER}placement", "PATCH", f"{NODES}/n1", {"metadata": {"labels": {"a": "b"}}}),
    ("the preemptor evicts a pod itself", f"{OTHER}preemptor", "POST", f"{PODS}/p/eviction", EVICTION),
    ("admission reads Secrets", f"{OTHER}admission", "GET", f"{SYSTEM}/secrets/kerf-nats", None),
    ("metrics reads pods", f"{OTHER}metrics", "GET", PODS, None),
    ("the watcher reads NATS' passwords", f"{OTHER}watcher", "GET", f"{SYSTEM}/secrets/kerf-nats", None),
    ("the watcher runs a command in a pod", f"{OTHER}watcher", "POST", f"{PODS}/p/exec", {}),
    ("the watcher creates a pod", f"{OTHER}watcher", "POST", PODS, named("w", pod(container()))),
    ("the watcher makes tokens", f"{OTHER}watcher", "POST", f"{SYSTEM}/serviceaccounts/kerf-operator/token", {}),
    ("the watcher gives itself rights", f"{OTHER}watcher", "POST", f"{RBAC}/clusterroles", MORE_RIGHTS),
    ("the watcher changes a policy", f"{OTHER}watcher", "PATCH", POLICIES, {"spec": {"failurePolicy": "Ignore"}}),
    ("the operator binds a pod", f"{OTHER}operator", "POST", f"{PODS}/p/binding", BINDING),
    ("the operator deletes a pod", f"{OTHER}operator", "DELETE", f"{PODS}/p", None),
    ("the operator reads others' Secrets", f"{OTHER}operator", "GET", "/api/v1/namespaces/team-a/secrets/s", None),
    ("the operator reads an unknown Secret of its own", f"{OTHER}operator", "GET", f"{SYSTEM}/secrets/other", None),
    ("the operator gives itself rights", f"{OTHER}operator", "POST", f"{RBAC}/clusterrolebindings", CLUSTER_ADMIN),
    ("a tenant writes a grant at creation", TENANT, "POST", PODS, named("spoofed", GRANTED)),
    ("a tenant writes a grant later", TENANT, "PATCH", f"{PODS}/p", WITH_GRANT),
    ("a tenant binds its own pod", TENANT, "POST", f"{PODS}/p/binding", BINDING),
    ("a tenant binds its own pod by the former path", TENANT, "POST", "/api/v1/namespaces/team-a/bindings", BINDING),
    ("a tenant names the node of a GPU pod", TENANT, "POST", PODS, named("n", pod(container(gpu="1"), nodeName="n1"))),
    ("a tenant writes the queues", TENANT, "POST", f"{SYSTEM}/configmaps", {"metadata": {"name": "kerf-policy"}}),
    ("a tenant lists itself as a scheduler", TENANT, "PATCH", f"{SYSTEM}/configmaps/kerf-schedulers", ALL_ACCOUNTS),
    ("a tenant reads NATS' passwords", TENANT, "GET", f"{SYSTEM}/secrets/kerf-nats", None),
    ("a tenant runs in Kerf's namespace", TENANT, "POST", f"{SYSTEM}/pods", pod(container())),
    ("a tenant enrols a node", TENANT, "PATCH", f"{NODES}/n1", {"metadata": {"labels": {"kerf.dev/managed": "true"}}}),
    ("a tenant redirects the webhook", TENANT, "PATCH", WEBHOOKS, {"webhooks": []}),
]  # fmt: skip

AGENT, TENANT_USER = permissions.agent_of("n1").name, permissions.tenant_of("team-a").name
ON_NATS: list[tuple[str, str, str, str]] = [
    ("an agent speaks for another node", AGENT, "publish", subjects.heartbeat("n2")),
    ("an agent returns another node's GPUs", AGENT, "publish", subjects.release("n2")),
    ("an agent writes another node's inventory", AGENT, "publish", "$KV.kerf_nodes.n2"),
    ("an agent hears another node's orders", AGENT, "subscribe", subjects.node_command("n2", "grant")),
    ("an agent orders a Binding", AGENT, "publish", subjects.CMD_BIND),
    ("an agent writes the log", AGENT, "publish", subjects.LOG_DECISIONS),
    ("an agent hears placement's answers", AGENT, "subscribe", "_INBOX_placement.>"),
    ("the watcher writes the log", "watcher", "publish", subjects.LOG_DECISIONS),
    ("the watcher orders a node", "watcher", "publish", subjects.node_command("n1", "grant")),
    ("the preemptor orders a Binding", "preemptor", "publish", subjects.CMD_BIND),
    ("placement speaks for the API server", "placement", "publish", subjects.feed("e")),
    ("placement purges the log", "placement", "publish", "$JS.API.STREAM.PURGE.KERF_LOG"),
    ("placement deletes the log's mark", "placement", "publish", "$JS.API.STREAM.DELETE.KV_kerf_mark"),
    ("an operator purges the log", "operator", "publish", "$JS.API.STREAM.PURGE.KERF_LOG"),
    ("a reader deletes the log", "reader", "publish", "$JS.API.STREAM.DELETE.KERF_LOG"),
    ("a reader cordons a node", "reader", "publish", subjects.node_command("n1", "cordon")),
    ("a reader evicts", "reader", "publish", subjects.CMD_EVICT),
    ("a tenant hears another tenant's events", TENANT_USER, "subscribe", OF_TEAM_B),
    ("a tenant hears all events", TENANT_USER, "subscribe", subjects.EVENTS_ALL),
    ("a tenant hears what nodes use", TENANT_USER, "subscribe", subjects.USAGE_ALL),
    ("a tenant asks about other tenants' pods", TENANT_USER, "publish", queries.WHY.subject),
    ("a tenant replays the events' stream", TENANT_USER, "publish", "$JS.API.CONSUMER.CREATE.KERF_EVENTS"),
    ("a tenant reports an event", TENANT_USER, "publish", subjects.event_in_namespace("pod", "bound", "team-a")),
]  # fmt: skip


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    binaries = binaries_or_skip()
    with tempfile.TemporaryDirectory(prefix="kerf-kube-") as state:
        made = ControlPlane(Path(state), binaries=binaries).start()
        try:
            manifests.apply_all(made, "00-", "1", "20-", "21-", "22-", "23-", "24-", "40-")
            made.request("POST", "/api/v1/namespaces", {"metadata": {"name": "team-a"}})
            made.request("POST", NODES, {"metadata": {"name": "n1"}})
            resources = ["pods", "pods/binding", "bindings", "secrets", "configmaps"]
            rules = [{"apiGroups": [""], "resources": resources, "verbs": ["*"]}]
            role = {"metadata": {"name": "tenant"}, "rules": rules}
            made.request("POST", f"{RBAC}/namespaces/team-a/roles", role)
            bound = {
                "metadata": {"name": "tenant"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"},
                "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": "team-a"}],
            }
            made.request("POST", f"{RBAC}/namespaces/team-a/rolebindings", bound)
            manifests.wait_for_policies(made)
            status, answer = made.request("POST", PODS, named("p", pod(container())))
            assert status == 201, answer
            yield made
        finally:
            made.stop()


@pytest.mark.parametrize(
    ("action", "account", "method", "path", "body"), IN_KUBERNETES, ids=[row[0] for row in IN_KUBERNETES]
)
def test_the_api_server_refuses(
    plane: ControlPlane, action: str, account: str, method: str, path: str, body: Any
) -> None:
    namespace, name = account.split("/")
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    status, answer = As(plane, plane.service_account(namespace, name))(method, path, body, kind)
    by_policy = "ValidatingAdmissionPolicy 'kerf-" in answer["message"]
    assert (status, by_policy) in ((403, False), (422, True)), f"{action}: {answer}"
    assert "forbidden" in answer["message"], answer


@pytest.fixture
async def nats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    conf = tmp_path / "nats.conf"
    users = (permissions.agent_of("n1"), permissions.tenant_of("team-a"))
    conf.write_text(permissions.render(*users))
    for user in (*permissions.USERS, *users):
        monkeypatch.setenv(f"KERF_NATS_{user.name.upper().replace('.', '_').replace('-', '_')}", "secret")
    async with EmbeddedServer(config_file=conf) as server:
        async with await connect(server, "placement") as placement:
            await provision(placement)
        yield server


async def connect(server: EmbeddedServer, name: str) -> NatsBus:
    users = (*permissions.USERS, permissions.agent_of("n1"), permissions.tenant_of("team-a"))
    (user,) = [user for user in users if user.name == name]
    return await NatsBus.connect(f"nats://{name}:secret@127.0.0.1:{server.port}", inbox_prefix=user.inbox_prefix)


@pytest.mark.parametrize(("action", "user", "verb", "subject"), ON_NATS, ids=[row[0] for row in ON_NATS])
async def test_nats_refuses(nats: EmbeddedServer, action: str, user: str, verb: str, subject: str) -> None:
    async def came(incoming: Incoming) -> None:
        raise AssertionError(f"{action}: {incoming.subject}")

    async with await connect(nats, user) as bus:
        if verb == "subscribe":
            with pytest.raises(BusError, match="not permitted to subscribe"):
                await bus.subscribe(subject, came)
            return
        await bus.publish(subject, b"{}")
        assert await bus.alive()
        assert bus.stats.denied == 1, action


async def test_a_tenant_hears_its_own_events(nats: EmbeddedServer) -> None:
    async with await connect(nats, "placement") as placement, await connect(nats, TENANT_USER) as tenant:
        heard: list[str] = []

        async def came(incoming: Incoming) -> None:
            heard.append(incoming.subject)

        await tenant.subscribe(f"{subjects.VERSION}.event.*.*.ns.team-a", came)
        for namespace in ("team-b", "team-a"):
            placement.publish_event(subjects.event_in_namespace("pod", "bound", namespace), b"{}", namespace)
        assert await placement._events.flushed(5)
        await eventually(lambda: heard)
        assert heard == [subjects.event_in_namespace("pod", "bound", "team-a")]


async def test_a_tenants_pod_has_no_password_and_no_way(nats: EmbeddedServer) -> None:
    """The NetworkPolicy admits Kerf's own pods and namespaces that an administrator has labelled; NATS, passwords."""
    (policy,) = [m for m in manifests.load("40-") if m["metadata"]["name"] == "kerf-nats"]
    clients, routes = (rule["from"] for rule in policy["spec"]["ingress"])
    assert clients == [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "kerf"}}},
        {"namespaceSelector": {"matchLabels": {"kerf.dev/events": "allowed"}}},
    ]
    assert routes == [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "kerf-nats"}}}]
    for login in ("", "placement:guess@", "tenant:@"):
        with pytest.raises(BusError):
            await NatsBus.connect(f"nats://{login}127.0.0.1:{nats.port}", timeout_s=1)
