"""ResourceQuota on a real API server: every way to ask for GPUs counts, and counts the same."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.admission.core import Allowed, Policy, Request, review
from services.simulator.patch import json_patch
from shared.model import names
from shared.model.units import quantity
from tests.support import manifests
from tests.support.cluster import binaries_or_skip
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
QUOTA = "requests.kerf.dev/quota-gpu-milli"
CLAIMS = "gpu.kerf.dev.deviceclass.resource.k8s.io/devices"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    binaries = binaries_or_skip()
    with tempfile.TemporaryDirectory(prefix="kerf-kube-") as state:
        made = ControlPlane(Path(state), binaries=binaries).start()
        try:
            manifests.apply_all(made, "00-", "1", "20-", "21-", "22-", "23-", "25-")
            manifests.wait_for_policies(made)
            yield made
        finally:
            made.stop()


class Team:
    """A namespace with a ResourceQuota. No controller runs here, so the test writes the quota's first status."""

    def __init__(self, plane: ControlPlane, name: str, **hard: str) -> None:
        self.plane, self.name = plane, name
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self.quota = f"/api/v1/namespaces/{name}/resourcequotas"
        self.call("POST", self.quota, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})
        status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
        self.call("PATCH", f"{self.quota}/gpus/status", status, kind="application/merge-patch+json")

    def call(self, method: str, path: str, body: Json, kind: str = "application/json") -> Json:
        status, answer = self.try_to(method, path, body, kind)
        assert status in (200, 201), answer
        return answer

    def try_to(self, method: str, path: str, body: Json, kind: str = "application/json") -> tuple[int, Json]:
        status, answer = self.plane.request(method, path, body, content_type=kind)
        return status, json.loads(answer)

    def create(self, name: str, **limits: str) -> tuple[int, Json]:
        """A pod as the webhook hands it on: foreign dialects are rewritten, all others are left to the API server."""
        container = {"name": "c", "image": "i", "resources": {"limits": limits}}
        meta = {"name": name, "namespace": self.name}
        pod: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
        if not any(key.startswith("kerf.dev") for key in limits):
            decided = review(Request(pod=pod, namespace=self.name), Policy(plain_nvidia_namespaces=("*",)))
            assert isinstance(decided, Allowed), decided
            pod = json_patch(pod, list(decided.patches))
        return self.try_to("POST", f"/api/v1/namespaces/{self.name}/pods", pod)

    def used(self, resource: str) -> str:
        return str(self.call("GET", f"{self.quota}/gpus", {})["status"]["used"][resource])


ASKS: list[tuple[dict[str, str], int]] = [
    ({"kerf.dev/gpu": "2"}, 2000),
    ({"kerf.dev/gpu-memory": "16Gi"}, 200),
    ({"kerf.dev/gpu-compute": "30"}, 300),
    ({"kerf.dev/gpu-memory": "16Gi", "kerf.dev/gpu-compute": "30"}, 300),
    ({"kerf.dev/gpu": "2", "kerf.dev/gpu-memory": "80Gi", "kerf.dev/gpu-compute": "60"}, 1000),
    ({"kerf.dev/gpu": "8", "kerf.dev/gpu-memory": "8Mi"}, 8),
    ({"kerf.dev/gpu-memory": "141Gi"}, 1000),
    ({"kerf.dev/mig-1g.10gb": "2"}, 284),
    ({"aliyun.com/gpu-mem": "16"}, 200),
    ({"aliyun.com/gpu-count": "2", "aliyun.com/gpu-mem": "40"}, 500),
    ({"nvidia.com/gpu": "2"}, 2000),
    ({"nvidia.com/mig-1g.10gb": "2"}, 284),
    ({"kerf.dev/gpu": "1", names.RESOURCE_QUOTA: "1"}, 1000),
]


@pytest.mark.parametrize(("number", "limits", "counts"), [(number, *case) for number, case in enumerate(ASKS)])
def test_every_way_to_ask_counts(plane: ControlPlane, number: int, limits: dict[str, str], counts: int) -> None:
    team = Team(plane, f"asks-{number}", **{QUOTA: "2000"})
    status, answer = team.create("first", **limits)
    assert status == 201, answer
    assert quantity(team.used(QUOTA)) == counts
    assert team.create("one-more", **{"kerf.dev/gpu": "2"})[0] == 403, "what is left is less than two GPUs"


def test_slices_and_whole_gpus_share_one_quota(plane: ControlPlane) -> None:
    """A quota on GPUs as pods name them lets all memory go by slices, and one on memory all GPUs."""
    gpus = Team(plane, "by-gpus", **{"requests.kerf.dev/gpu": "1"})
    assert gpus.create("slice", **{"kerf.dev/gpu-memory": "640Gi"})[0] == 201
    assert gpus.used("requests.kerf.dev/gpu") == "0"
    memory = Team(plane, "by-memory", **{"requests.kerf.dev/gpu-memory": "16Gi"})
    assert memory.create("whole", **{"kerf.dev/gpu": "8"})[0] == 201
    assert memory.used("requests.kerf.dev/gpu-memory") == "0"
    both = Team(plane, "by-both", **{QUOTA: "1000"})
    assert both.create("half", **{"kerf.dev/gpu-memory": "40Gi"})[0] == 201
    status, answer = both.create("whole", **{"kerf.dev/gpu": "1"})
    assert status == 403
    assert "exceeded quota: gpus, requested: requests.kerf.dev/quota-gpu-milli=1k" in answer["message"]
    assert both.create("rest", **{"kerf.dev/gpu-compute": "50"})[0] == 201


def test_claims_count_by_the_device(plane: ControlPlane) -> None:
    """A ResourceClaim's devices count under a resource of Kubernetes' own: its class, in whole devices."""
    team = Team(plane, "by-claims", **{QUOTA: "1000", CLAIMS: "1"})
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.kerf.dev", "count": 1}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": {"requests": [request]}}}
    path = "/apis/resource.k8s.io/v1/namespaces/by-claims/resourceclaims"
    assert team.try_to("POST", path, claim | {"metadata": {"name": "one"}})[0] == 201
    assert team.used(CLAIMS) == "1"
    status, answer = team.try_to("POST", path, claim | {"metadata": {"name": "two"}})
    assert (status, CLAIMS in answer["message"]) == (403, True)
    assert team.used(QUOTA) == "0"
