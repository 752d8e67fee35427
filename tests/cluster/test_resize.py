"""Kubernetes' in-place resize and Kerf's resources, on a real API server.

pkg/apis/core/validation (ValidatePodResize) refuses every change but of CPU and memory, so what a slice shall
have is an annotation.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.kube import resources
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


def test_the_resize_subresource_takes_cpu_and_refuses_kerfs_resources(
    control_plane: ControlPlane, namespace: str
) -> None:
    limits = {"kerf.dev/gpu-memory": "2Gi", "kerf.dev/gpu-compute": "30"}
    document = {
        "metadata": {"name": "p"},
        "spec": {
            "containers": [
                {"name": "main", "image": "x", "resources": {"limits": limits, "requests": {"cpu": "100m", **limits}}}
            ]
        },
    }
    status, answer = control_plane.request("POST", resources.POD.collection(namespace), document)
    assert status == 201, answer
    changed, said = resize(control_plane, namespace, {"requests": {"cpu": "200m"}})
    assert changed == 200, said
    for resource, amount in (("kerf.dev/gpu-memory", "4Gi"), ("kerf.dev/gpu-compute", "60")):
        status, said = resize(control_plane, namespace, {"limits": {resource: amount}, "requests": {resource: amount}})
        assert status == 422
        assert "only cpu and memory resources are mutable" in said["message"]


def resize(plane: ControlPlane, namespace: str, amounts: dict[str, Any]) -> tuple[int, Any]:
    body = {"spec": {"containers": [{"name": "main", "resources": amounts}]}}
    path = f"{resources.POD.path('p', namespace)}/resize"
    status, answer = plane.request("PATCH", path, body, content_type=STRATEGIC_PATCH)
    return status, json.loads(answer)
