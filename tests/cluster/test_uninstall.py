"""Kerf is removed from a real API server: by the commands for plain manifests, and where its namespace is gone."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from services.operator.config import Config
from services.operator.service import Operator
from services.operator.uninstall import Uninstall
from shared.kube.client import connect
from shared.kube.transport import TransportError
from shared.service import running
from tests.support import manifests
from tests.support.cluster import binaries_or_skip
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster

WITHIN_S = 40.0
NODE = "/api/v1/nodes/n1"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    binaries = binaries_or_skip("etcd", "kube-apiserver", "kubectl")
    with tempfile.TemporaryDirectory(prefix="kerf-kube-") as state:
        made = ControlPlane(Path(state), binaries=binaries).start()
        try:
            yield made
        finally:
            made.stop()


def there(plane: ControlPlane, path: str) -> dict[str, Any] | None:
    status, body = plane.request("GET", path)
    return json.loads(body) if status == 200 else None


def marks(plane: ControlPlane) -> set[str]:
    """The labels and taints of Kerf on the node."""
    node = there(plane, NODE)
    assert node is not None
    taints = {taint["key"] for taint in node["spec"].get("taints", ())}
    return {key for key in {*node["metadata"].get("labels", ()), *taints} if key.startswith("kerf.dev/")}


async def remove(plane: ControlPlane, **settings: Any) -> list[str]:
    """What the job does, with the rights of its account."""
    said: list[str] = []
    transport = await connect(str(plane.service_account("kerf-system", "kerf-uninstall")))
    try:
        done = Uninstall(transport, Config(lease_s=2, **settings), said.append, structlog.get_logger(), wait_s=4)
        assert await done.run(), said
    finally:
        await transport.close()
    return said


async def test_plain_manifests_are_removed_and_the_volumes_stay(plane: ControlPlane) -> None:
    def shell(command: str) -> None:
        path = f"{plane.binaries}{os.pathsep}{os.environ['PATH']}"
        env = os.environ | {"KUBECONFIG": str(plane.kubeconfig()), "PATH": path}
        done = subprocess.run(
            ["sh", "-c", command], cwd=manifests.FOLDER.parent, env=env, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()

    delete, apply, _wait, _logs, end = manifests.removal()
    shell("kubectl apply --filename k8s/")
    plane.request("POST", "/api/v1/nodes", {"metadata": {"name": "n1", "labels": {"kerf.dev/managed": "true"}}})
    config = Config(kubeconfig=str(plane.service_account("kerf-system", "kerf-operator")), lease_s=2, check_s=1)
    secret = "/api/v1/namespaces/kerf-system/secrets/kerf-admission"
    async with running(Operator, config):
        await eventually(lambda: there(plane, secret) and len(marks(plane)) > 1, within_s=WITHIN_S)
    shell(delete)
    shell(apply)
    said = await remove(plane)
    shell(end)
    assert marks(plane) == {"kerf.dev/managed"}
    assert there(plane, secret) is None
    left = {(m["kind"], m["metadata"]["name"]) for m in manifests.load() if there(plane, manifests.path_of(m))}
    assert left == {("Namespace", "kerf-system"), ("PersistentVolumeClaim", "kerf-metrics")}
    assert any("left: PersistentVolumeClaim kerf-metrics" in line for line in said)


async def test_where_the_namespace_is_gone_the_api_servers_words_say_so(plane: ControlPlane) -> None:
    """No operator runs there that could hold the Lease."""
    transport = await connect(str(plane.kubeconfig()))
    done = Uninstall(transport, Config(namespace="gone", lease_s=2), print, structlog.get_logger(), wait_s=2)
    with pytest.raises(TransportError, match='cannot be taken: HTTP 404: namespaces "gone" not found'):
        await done.run()
    await transport.close()
