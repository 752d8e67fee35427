"""The control plane that all other tests here use."""

from __future__ import annotations

import json

import pytest

from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster


def test_it_serves_the_version_we_pin(control_plane: ControlPlane) -> None:
    status, body = control_plane.request("GET", "/version")
    assert status == 200
    assert json.loads(body)["gitVersion"] == "v1.36.4"


def test_a_service_account_has_the_identity_of_its_kubeconfig(control_plane: ControlPlane) -> None:
    config = json.loads(control_plane.service_account("kerf", "watcher").read_text())
    assert config["users"][0]["name"] == "system:serviceaccount:kerf:watcher"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": "system:serviceaccount:kerf:watcher",
            "resourceAttributes": {"verb": "list", "resource": "pods"},
        },
    }
    status, body = control_plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert status == 201
    assert not json.loads(body)["status"]["allowed"]


def test_namespaces_are_fresh(control_plane: ControlPlane, namespace: str) -> None:
    status, body = control_plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")
    assert (status, json.loads(body)["items"]) == (200, [])
