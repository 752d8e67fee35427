"""Signing in to the live page with tokens of a real API server, by an account that may only delegate."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.metrics.page.sign_in import Denied
from services.metrics.page.sign_in.token_review import PATH, TokenReviewSignIn, reviewer
from shared.kube.client import connect
from tools.control_plane import ControlPlane

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def create(plane: ControlPlane, path: str, body: dict[str, Any]) -> dict[str, Any]:
    status, answer = plane.request("POST", path, body)
    assert status in (200, 201, 409), answer
    made: dict[str, Any] = json.loads(answer)
    return made


def account(plane: ControlPlane, namespace: str, name: str) -> str:
    """Creates a service account, and returns a token of it."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    create(plane, accounts, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    return str(create(plane, f"{accounts}/{name}/token", asked)["status"]["token"])


def bind(plane: ControlPlane, role: str, namespace: str, name: str) -> None:
    body = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{role.replace(':', '-')}-{namespace}-{name}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": name}],
    }
    create(plane, f"{RBAC}/clusterrolebindings", body)


@pytest.fixture
async def sign_in(control_plane: ControlPlane, namespace: str) -> AsyncIterator[TokenReviewSignIn]:
    """As the account kerf-metrics, which has the ClusterRole system:auth-delegator and nothing else."""
    kubeconfig = control_plane.service_account(namespace, "kerf-metrics")
    bind(control_plane, "system:auth-delegator", namespace, "kerf-metrics")
    transport = await connect(str(kubeconfig))
    yield TokenReviewSignIn(reviewer(transport))
    await transport.close()


async def test_a_token_of_a_user_who_may_read_the_page_signs_in(
    control_plane: ControlPlane, namespace: str, sign_in: TokenReviewSignIn
) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "kerf-live-page"},
        "rules": [{"nonResourceURLs": [PATH], "verbs": ["get"]}],
    }
    create(control_plane, f"{RBAC}/clusterroles", role)
    token = account(control_plane, namespace, "reader")
    with pytest.raises(Denied, match="may not read this page"):
        await sign_in.by_token(token)
    bind(control_plane, "kerf-live-page", namespace, "reader")
    assert await sign_in.by_token(token) == f"system:serviceaccount:{namespace}:reader"


async def test_a_token_that_is_not_valid_is_refused(sign_in: TokenReviewSignIn) -> None:
    with pytest.raises(Denied, match="the API server does not accept the token") as denied:
        await sign_in.by_token("eyJhbGciOiJub25lIn0.e30.x")
    assert denied.value.status == 401


async def test_an_account_that_may_not_delegate_says_what_it_lacks(control_plane: ControlPlane, namespace: str) -> None:
    transport = await connect(str(control_plane.service_account(namespace, "nobody")))
    try:
        with pytest.raises(Denied, match="system:auth-delegator") as denied:
            await TokenReviewSignIn(reviewer(transport)).by_token(account(control_plane, namespace, "reader"))
        assert denied.value.status == 503
    finally:
        await transport.close()
