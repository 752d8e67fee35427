"""What `kerf doctor` says of other systems, on API servers of several kinds."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest

from cli.doctor.base import PAGE, CannotLook, Finding, Site
from cli.doctor.neighbours import Neighbours
from shared.contracts.queries import InspectNode
from shared.kube.transport import Response

GPU = {"feature.node.kubernetes.io/pci-10de.present": "true"}
OWN = {"kerf.dev/managed": "true", "kerf.dev/enrolled": "true"}


def node(name: str, labels: dict[str, str], **allocatable: str) -> dict[str, Any]:
    named = {f"nvidia.com/{key}": value for key, value in allocatable.items()}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": named}}


class Api:
    """An API server with these nodes, and with ResourceSlices in one version; empty: without that group."""

    def __init__(self, *nodes: dict[str, Any], version: str = "v1", slices: Any = (), forbids: str = "") -> None:
        self.nodes, self.version, self.slices, self.forbids = nodes, version, slices, forbids
        self.asked: list[str] = []

    async def request(self, method: str, path: str, body: bytes = b"", **_: Any) -> Response:
        self.asked.append(path)
        where, query = urlsplit(path).path, dict(parse_qsl(urlsplit(path).query))
        group = f"/apis/resource.k8s.io/{self.version}"
        if self.forbids and self.forbids in where:
            return Response(403, b"{}")
        if where == "/api/v1/nodes":
            start = int(query.get("continue", "0"))
            end = start + int(query["limit"])
            more = {"continue": str(end)} if end < len(self.nodes) else {}
            return self._found({"items": self.nodes[start:end], "metadata": more})
        if not self.version:
            return Response(404, b"{}")
        if where == "/apis/resource.k8s.io":
            return self._found({"versions": [{"version": self.version}]})
        if where == group:
            return self._found({"resources": [{"name": "resourceslices"}]})
        if where == f"{group}/resourceslices":
            assert query["fieldSelector"] == "spec.driver=gpu.nvidia.com"
            return self._found({"items": self.slices})
        return Response(404, b"{}")

    def _found(self, document: Any) -> Response:
        return Response(200, msgspec.json.encode(document))


async def told(api: Any, **fields: Any) -> list[Finding]:
    return await Neighbours().run(Site(url="nats://h", user="reader", kube=api, **fields))


async def test_a_cluster_of_kerfs_alone_is_well() -> None:
    (found,) = await told(Api(node("a", OWN | GPU, gpu="0"), node("cpu", {})))
    assert (found.status, found.text) == ("ok", "no other system offers GPUs of enrolled nodes")


async def test_another_device_plugin_is_a_failure_that_names_its_nodes() -> None:
    (found,) = await told(Api(node("a", OWN, gpu="8"), node("b", OWN | GPU)))
    assert found.status == "fail"
    assert found.text.endswith("as nvidia.com/gpu: a")
    assert "nvidia.com/gpu.deploy.device-plugin=false" in found.do


@pytest.mark.parametrize("labels", [{"kerf.dev/managed": "true"}, {"gpushare": "true"}, {"kerf.dev/enrolled": "true"}])
async def test_nodes_that_are_to_be_enrolled_count(labels: dict[str, str]) -> None:
    (found,) = await told(Api(node("a", labels, gpu="8")))
    assert found.status == "fail"


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_nvidias_dra_driver_is_found_in_the_version_that_the_server_has(version: str) -> None:
    slices = [
        {"spec": {"nodeName": "a", "devices": [{"name": "gpu-0"}]}},
        {"spec": {"nodeName": "b"}},
        {"spec": {"nodeName": "c", "devices": [{"name": "gpu-0"}]}},
    ]
    nodes = (node("a", OWN), node("b", OWN), node("c", {"kerf.dev/managed": "false"}))
    (found,) = await told(Api(*nodes, version=version, slices=slices))
    assert (found.status, found.text.endswith("given twice: a")) == ("fail", True), found


async def test_a_server_without_resource_slices_is_well() -> None:
    (found,) = await told(Api(node("a", OWN), version=""))
    assert found.status == "ok"


async def test_slices_that_may_not_be_read_hide_nothing_else() -> None:
    findings = await told(Api(node("a", OWN, gpu="8"), forbids="resourceslices"))
    assert [found.status for found in findings] == ["fail", "warn"]
    assert "NVIDIA's DRA driver was not looked for: the API server answers 403" in findings[1].text
    assert findings[1].do


async def test_a_discovery_that_fails_is_a_warning() -> None:
    findings = await told(Api(node("a", OWN), forbids="resource.k8s.io"))
    assert [found.status for found in findings] == ["warn"]
    assert "HTTP 403" in findings[0].text


async def test_nodes_that_are_not_enrolled_are_named_and_are_no_problem() -> None:
    found = await told(Api(node("a", OWN | GPU), *(node(f"g{i}", GPU) for i in range(4))))
    assert [one.status for one in found] == ["ok", "ok"]
    assert found[1].text == "nodes with GPUs that are not enrolled: 4 (g0, g1, g2 and 1 more)"
    assert found[1].do.endswith("kubectl label node NODE kerf.dev/managed=true")


async def test_an_enrolled_node_without_a_gpu_is_a_warning() -> None:
    bare = node("bare", OWN | {"feature.node.kubernetes.io/kernel-version.major": "6"})
    (found,) = await told(Api(bare, node("a", OWN | GPU)))
    assert (found.status, found.text.endswith("on enrolled nodes: bare")) == ("warn", True)


async def test_every_page_of_nodes_is_read() -> None:
    api = Api(*(node(f"n{i:04}", {}) for i in range(PAGE)), node("last", OWN, gpu="1"))
    (found,) = await told(api)
    assert found.text.endswith(": last")
    assert len([path for path in api.asked if path.startswith("/api/v1/nodes")]) == 2


async def test_simulated_nodes_have_no_neighbours() -> None:
    (found,) = await told(None, nodes=(InspectNode(node="a", gpus=(), simulated=True),))
    assert found.status == "ok"
    with pytest.raises(CannotLook):
        await told(None, kube_error="no kubeconfig")
