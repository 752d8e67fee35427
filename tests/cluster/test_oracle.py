"""kube-scheduler is the oracle: Kerf may take no node that kube-scheduler refuses.

Pods and clusters are drawn from seeds (KERF_ORACLE_SEEDS, KERF_ORACLE_PODS for more). A copy of each pod is pinned to
each node in turn; kube-scheduler binds it or states why not, and Kerf's filters get the same objects, as read back.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.placement.engine.engine import Engine
from services.placement.scheduling.unsupported_fields import refusal
from shared.book.book import Book
from shared.book.states import PodState, pod_state
from shared.contracts.facts import Put
from shared.kube.client import connect
from shared.kube.transport import Transport
from shared.model.objects import Namespace, Node, Pod
from shared.scheduling.filters import filters
from tests.support.cluster import binaries_or_skip
from tests.support.scheduling import RUNTIME_CLASS, Drawn, Manifest, pin
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
SEEDS = range(int(os.environ.get("KERF_ORACLE_SEEDS", "10")))
PODS = int(os.environ.get("KERF_ORACLE_PODS", "16"))
EQUAL_SHARE = 0.99
_KINDS = {"nodes": Node, "namespaces": Namespace, "pods": Pod}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    binaries = binaries_or_skip("etcd", "kube-apiserver", "kube-scheduler")
    with tempfile.TemporaryDirectory(prefix="kerf-kube-") as state:
        made = ControlPlane(Path(state), binaries=binaries, scheduler=True).start()
        try:
            status, answer = made.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", RUNTIME_CLASS)
            assert status == 201, answer
            yield made
        finally:
            made.stop()


class Cluster:
    """One drawn cluster on the API server, and its copy in a book."""

    def __init__(self, kube: Transport, drawn: Drawn) -> None:
        self.kube, self.drawn, self.book = kube, drawn, Book()

    async def ask(self, method: str, path: str, body: Any = None, *, patch: bool = False) -> Any:
        kind = "application/merge-patch+json" if patch else "application/json"
        response = await self.kube.request(
            method, path, b"" if body is None else json.dumps(body).encode(), content_type=kind
        )
        assert response.status in (200, 201), response.body.decode()
        return json.loads(response.body)

    async def create(self) -> None:
        for namespace in self.drawn.namespace_objects():
            await self.ask("POST", "/api/v1/namespaces", namespace)
        for node in self.drawn.nodes:
            await self.ask("POST", "/api/v1/nodes", node)
        for pod in self.drawn.existing:
            fate = pod.pop("fate")
            path = await self._post(pod)
            if fate == "leaving":
                await self.ask("DELETE", path)
            elif fate != "runs":
                await self.ask("PATCH", f"{path}/status", {"status": {"phase": fate}}, patch=True)
        await self._seen_by_the_scheduler()
        for plural, kind in _KINDS.items():
            for item in (await self.ask("GET", f"/api/v1/{plural}"))["items"]:
                self.book.apply(Put(object=msgspec.convert(item | {"kind": kind.__name__}, kind)))

    async def _seen_by_the_scheduler(self) -> None:
        """Its caches follow the API server. When it has bound a pod to the node created last, it has seen all nodes
        before it; when it has bound a pod created after the others, it has seen those too."""
        name = f"{self.drawn.prefix}-sentinel"
        offered = {"cpu": "1", "pods": "10", pin(name): "10"}
        taint = {"key": "sentinel", "effect": "NoSchedule"}
        node = {
            "metadata": {"name": name},
            "spec": {"taints": [taint]},
            "status": {"capacity": offered, "allocatable": offered},
        }
        await self.ask("POST", "/api/v1/nodes", node)
        container = {"name": "c", "image": "example", "resources": {"limits": {pin(name): "1"}}}
        spec = {"containers": [container], "tolerations": [{"operator": "Exists"}]}
        path = await self._post({"metadata": {"name": "canary", "namespace": self.drawn.namespaces[2]}, "spec": spec})

        async def bound() -> bool:
            return bool((await self.ask("GET", path))["spec"].get("nodeName"))

        await eventually(bound, within_s=30, what="kube-scheduler sees the cluster")
        await self._remove(path)

    async def delete(self) -> None:
        for namespace in self.drawn.namespaces:
            for item in (await self.ask("GET", f"/api/v1/namespaces/{namespace}/pods"))["items"]:
                await self._remove(f"/api/v1/namespaces/{namespace}/pods/{item['metadata']['name']}")
        for node in (await self.ask("GET", "/api/v1/nodes"))["items"]:
            await self.ask("DELETE", f"/api/v1/nodes/{node['metadata']['name']}")

    async def _post(self, pod: Manifest) -> str:
        collection = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
        await self.ask("POST", collection, pod)
        return f"{collection}/{pod['metadata']['name']}"

    async def _remove(self, path: str) -> None:
        await self.ask("DELETE", f"{path}?gracePeriodSeconds=0")

    async def probe(self, pod: Manifest, node: str) -> tuple[str, Pod]:
        """kube-scheduler's verdict on this pod on this node, empty if it bound the pod; and the copy as read back
        unbound."""
        pinned = copy.deepcopy(pod)
        resources = pinned["spec"]["containers"][0]["resources"]
        resources["limits"] = {**resources.get("limits", {}), pin(node): "1"}
        resources["requests"] = {**resources.get("requests", {}), pin(node): "1"}
        path = await self._post(pinned)

        async def verdict() -> tuple[str, Any] | None:
            seen = await self.ask("GET", path)
            if seen["spec"].get("nodeName"):
                assert seen["spec"]["nodeName"] == node
                return "", seen
            told = [
                c
                for c in seen["status"].get("conditions", ())
                if c["type"] == "PodScheduled" and c["status"] == "False"
            ]
            return (f"{told[0]['reason']}: {told[0].get('message', '')}", seen) if told else None

        said, seen = await eventually(
            verdict, within_s=30, every_s=0.004, what=f"kube-scheduler's word on {path} on {node}"
        )
        await self._remove(path)
        seen["spec"].pop("nodeName", None)
        seen["spec"]["schedulerName"] = "kerf"
        return said, msgspec.convert(seen | {"kind": "Pod"}, Pod)

    def ours(self, pod: Pod, node: str) -> str:
        """Kerf's verdict on the same, empty if it would place the pod there."""
        state = pod_state(pod)
        self._engine_agrees(state, node)
        if not state.wants_place:
            return "gated"
        why = refusal(state)
        if why is not None:
            return why.sentence
        for kind in filters().every:
            check = kind.prepare(state, self.book)
            reason = None if check is None else check(self.book.nodes[node])
            if reason is not None:
                return f"{reason.code}: {reason.sentence}"
        return ""

    def _engine_agrees(self, state: PodState, node: str) -> None:
        """The engine checks all nodes together, by columns; the filters, one by one, must give the same result."""
        place = Engine(self.book, "binpack").decide(state)
        alone = {
            name
            for name, known in self.book.nodes.items()
            if all(
                (check := kind.prepare(state, self.book)) is None or check(known) is None for kind in filters().every
            )
        }
        assert alone <= {node}
        assert (set() if place is None else {place.node}) == alone


@pytest.fixture
async def kube(plane: ControlPlane) -> AsyncIterator[Transport]:
    client = await connect(str(plane.kubeconfig()))
    yield client
    await client.close()


async def test_kerf_takes_no_node_that_kube_scheduler_refuses(
    kube: Transport, record_property: Callable[[str, object], None]
) -> None:
    pairs = equal = taken = 0
    wrong, strict = [], []
    for seed in SEEDS:
        cluster = Cluster(kube, Drawn(seed, pods=PODS))
        await cluster.create()
        for pod in cluster.drawn.pods:
            for node in [n["metadata"]["name"] for n in cluster.drawn.nodes]:
                theirs, seen = await cluster.probe(pod, node)
                ours = cluster.ours(seen, node)
                if bool(theirs) != bool(ours):
                    # The scheduler's cache may not have seen the removal of the pod before; it gets a second chance.
                    theirs, seen = await cluster.probe(pod, node)
                pairs, equal, taken = pairs + 1, equal + (bool(theirs) == bool(ours)), taken + (not theirs)
                if theirs and not ours:
                    wrong.append(
                        f"seed {seed} {pod['metadata']['name']} on {node}: kube-scheduler: {theirs}\n  "
                        f"{json.dumps(pod['spec'])}"
                    )
                if ours and not theirs:
                    strict.append(
                        f"seed {seed} {pod['metadata']['name']} on {node}: Kerf: {ours}\n  {json.dumps(pod['spec'])}"
                    )
        await cluster.delete()
    said = f"{equal} of {pairs} verdicts are equal, {taken} are yes"
    assert not wrong, f"{said}; nodes that only Kerf would take:\n" + "\n".join(wrong[:20])
    assert equal >= EQUAL_SHARE * pairs, f"{said}; nodes that only Kerf refuses:\n" + "\n".join(strict[:20])
    assert pairs * 0.1 < taken < pairs * 0.9, f"{said}: too one-sided to teach anything"
    record_property("verdicts", said)
