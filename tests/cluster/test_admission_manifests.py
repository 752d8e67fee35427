"""A real API server accepts every manifest, and the accounts have the rights that they need and no more."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import manifests
from tests.support.cluster import binaries_or_skip
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    binaries = binaries_or_skip()
    with tempfile.TemporaryDirectory(prefix="kerf-kube-") as state:
        made = ControlPlane(Path(state), binaries=binaries).start()
        try:
            manifests.apply_all(made, "00-", "1")
            yield made
        finally:
            made.stop()


@pytest.mark.parametrize("manifest", manifests.load(), ids=lambda m: f"{m['kind']}/{m['metadata']['name']}")
def test_a_manifest_applies_strictly(plane: ControlPlane, manifest: dict[str, Any]) -> None:
    """Server-side, with strict field validation: a misspelt field fails here and not in a user's cluster."""
    status, answer = manifests.apply(plane, manifest)
    assert status in (200, 201), answer.get("message")


def test_the_statefulset_carries_the_file_that_the_tests_use() -> None:
    """k8s/nats-callout.conf, with which embedded servers are tested, is what the cluster gets, after a line that names
    it."""
    (config,) = [m for m in manifests.load("30-") if m["kind"] == "ConfigMap"]
    _, tag, *given = [line for line in config["data"]["kerf.conf"].splitlines() if line]
    expected = [line for line in (manifests.FOLDER / "nats-callout.conf").read_text().splitlines() if line]
    assert tag.startswith("server_tags: ")
    assert given == expected


def test_only_three_accounts_have_rights_and_a_token() -> None:
    bound = {s["name"] for m in manifests.load() if m["kind"].endswith("RoleBinding") for s in m["subjects"]}
    assert bound == {"kerf-watcher", "kerf-operator", "kerf-metrics"}
    mounts = {
        m["metadata"]["name"]: m.get("automountServiceAccountToken", True)
        for m in manifests.load()
        if m["kind"] == "ServiceAccount"
    }
    assert {name for name, mounted in mounts.items() if mounted} == bound


def test_metrics_may_only_ask_who_a_visitor_of_its_page_is() -> None:
    (binding,) = [
        m
        for m in manifests.load()
        if m["kind"].endswith("RoleBinding") and {"kerf-metrics"} == {s["name"] for s in m["subjects"]}
    ]
    assert binding["roleRef"]["name"] == "system:auth-delegator"


ALLOWED = [
    *(
        ("get list watch", group, kind, "")
        for group, kind in (
            ("", "pods"),
            ("", "nodes"),
            ("", "namespaces"),
            ("", "resourcequotas"),
            ("", "persistentvolumeclaims"),
            ("", "persistentvolumes"),
            ("scheduling.k8s.io", "priorityclasses"),
            ("policy", "poddisruptionbudgets"),
            ("storage.k8s.io", "storageclasses"),
            ("storage.k8s.io", "csinodes"),
            ("storage.k8s.io", "csidrivers"),
            ("storage.k8s.io", "csistoragecapacities"),
        )
    ),
    ("create", "", "pods", "binding"),
    ("create", "", "pods", "eviction"),
    ("patch", "", "pods", "status"),
    ("patch delete", "", "pods", ""),
    ("patch", "", "nodes", ""),
    ("patch", "", "persistentvolumeclaims", ""),
    ("patch", "", "persistentvolumes", ""),
    ("create patch", "events.k8s.io", "events", ""),
    ("patch", "scheduling.k8s.io", "podgroups", "status"),
]
DENIED = [
    ("create update", "", "pods", ""),
    ("get list", "", "secrets", ""),
    ("create", "", "pods", "exec"),
    ("delete update", "", "nodes", ""),
    ("get", "", "nodes", "proxy"),
    ("create", "", "serviceaccounts", "token"),
    ("update delete", "", "persistentvolumes", ""),
    ("get update", "", "configmaps", ""),
    ("create update patch delete", "scheduling.k8s.io", "podgroups", ""),
    ("escalate bind", "rbac.authorization.k8s.io", "clusterroles", ""),
]


@pytest.mark.parametrize(("verbs", "group", "resource", "subresource"), ALLOWED + DENIED)
def test_the_watcher_may_what_a_scheduler_needs_and_no_more(
    plane: ControlPlane, verbs: str, group: str, resource: str, subresource: str
) -> None:
    expected = (verbs, group, resource, subresource) in ALLOWED
    for verb in verbs.split():
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": "system:serviceaccount:kerf-system:kerf-watcher",
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "resourceAttributes": {
                    "verb": verb,
                    "group": group,
                    "resource": resource,
                    "subresource": subresource,
                    "namespace": "default",
                },
            },
        }
        status, body = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        assert (status, json.loads(body)["status"]["allowed"]) == (201, expected), verb


def test_every_service_has_an_inbox_of_its_own() -> None:
    """The prefix that a workload gets is the one to which its NATS user may subscribe."""
    conf = (manifests.FOLDER / "nats.conf").read_text()
    prefixes = [
        e["value"]
        for m in manifests.load("3")
        if m["kind"] in ("Deployment", "DaemonSet")
        for c in m["spec"]["template"]["spec"]["containers"]
        for e in c["env"]
        if e["name"] == "KERF_NATS_INBOX_PREFIX"
    ]
    assert sorted(prefixes) == [
        "_INBOX_metrics",
        "_INBOX_node_agent",
        "_INBOX_placement",
        "_INBOX_preemptor",
        "_INBOX_watcher",
    ]
    assert all(f'"{prefix}.>"' in conf for prefix in prefixes)
