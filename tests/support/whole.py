"""All of Kerf against a real API server with every policy in force, the watcher under its own account."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.stack import Stack, stack
from cli.up import node_object
from shared.kube import resources
from tests.support import manifests
from tests.support.cluster import binaries_or_skip
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane

WITHIN_S = 40.0


@contextlib.contextmanager
def policed_plane() -> Iterator[ControlPlane]:
    """A control plane with its controllers, and of k8s/ all but the workloads and the webhook."""
    binaries = binaries_or_skip("etcd", "kube-apiserver", "kube-controller-manager")
    with tempfile.TemporaryDirectory(prefix="kerf-kube-") as state:
        plane = ControlPlane(Path(state), binaries=binaries, controllers=True).start()
        try:
            manifests.apply_all(plane, "00-", "10-", "11-", "20-", "21-", "22-", "23-")
            manifests.wait_for_policies(plane)
            yield plane
        finally:
            plane.stop()


class Whole:
    """The cluster as its user sees it, through the API server alone; and Kerf, running."""

    def __init__(self, plane: ControlPlane, made: Stack, namespace: str, nodes: Sequence[str] = ()) -> None:
        self.plane, self.made, self.namespace, self.nodes = plane, made, namespace, nodes

    async def ask(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Any:
        status, answer = await asyncio.to_thread(self.plane.request, method, path, body, content_type=content_type)
        assert status in (200, 201, 202), answer.decode()
        return json.loads(answer)

    async def create(self, kind: str, name: str, document: dict[str, Any]) -> Any:
        return await self.ask(
            "POST", resources.BY_KIND[kind].collection(self.namespace), document | {"metadata": {"name": name}}
        )

    async def pod(
        self, name: str, *, volumes: Sequence[str] = (), requests: dict[str, str] | None = None, **limits: str
    ) -> Any:
        """`limits` by the last part of the name of Kerf's resources (gpu, gpu_memory); `volumes` names claims."""
        wanted = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in limits.items()}
        container = {
            "name": "main",
            "image": "example",
            "resources": {"limits": wanted, "requests": {**wanted, **(requests or {})}},
        }
        claims = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in volumes]
        return await self.create("Pod", name, {"spec": {"containers": [container], "volumes": claims}})

    async def seen(self, kind: str, name: str) -> Any:
        return await self.ask("GET", resources.BY_KIND[kind].path(name, self.namespace))

    async def delete_pod(self, name: str) -> None:
        """At once, for no kubelet is there to end it."""
        await self.ask("DELETE", resources.POD.path(name, self.namespace) + "?gracePeriodSeconds=0")

    async def bound(self, name: str) -> Any:
        async def there() -> Any:
            """A controller may not have created it yet."""
            status, answer = await asyncio.to_thread(
                self.plane.request, "GET", resources.POD.path(name, self.namespace)
            )
            seen = json.loads(answer)
            return seen if status == 200 and seen["spec"].get("nodeName") else None

        return await eventually(there, within_s=WITHIN_S, every_s=0.05, what=f"pod {name} bound")

    async def event(self, name: str, reason: str) -> Any:
        """The first Event of this reason on the pod, as `kubectl describe` would list it."""

        async def there() -> Any:
            listed = await self.ask(
                "GET", f"/api/v1/namespaces/{self.namespace}/events?fieldSelector=involvedObject.name={name}"
            )
            return next((e for e in listed["items"] if e["reason"] == reason), None)

        return await eventually(there, within_s=WITHIN_S, every_s=0.05, what=f"an Event {reason} on {name}")


@contextlib.asynccontextmanager
async def whole(
    plane: ControlPlane,
    namespace: str,
    *,
    nodes: int = 2,
    gpus: int = 2,
    memory_mib: int = 40_960,
    dra: bool = False,
    firm: bool = False,
    preemption: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
) -> AsyncIterator[Whole]:
    """`labels`: the namespace's, from its creation on. Admission learns of later ones a moment late."""
    names = [f"{namespace}-{i}" for i in range(nodes)]
    hollow = [
        {"name": name, "model": "NVIDIA-A100", "count": gpus, "memory_mib": memory_mib, "dra": dra, "firm": firm}
        for name in names
    ]
    account = str(plane.service_account("kerf-system", "kerf-watcher"))
    async with stack(hollow, kubeconfig=account, trace_ratio=1.0, preemption=preemption) as running:
        world = Whole(plane, running, namespace, names)
        await world.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels or {}}})
        for name in names:
            document = node_object({"name": name})
            await world.ask("POST", "/api/v1/nodes", document)
            # New nodes get a not-ready taint, and the controller that removes it does not run here.
            await world.ask(
                "PATCH",
                f"/api/v1/nodes/{name}",
                {"spec": document["spec"]},
                content_type="application/merge-patch+json",
            )
        if not plane.controllers:
            await world.ask(
                "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}}
            )
        await eventually(lambda: has_account(world), within_s=WITHIN_S, what="the namespace's account")
        try:
            yield world
            assert running.failed() == ""
        finally:
            for name in names:
                await world.ask("DELETE", f"/api/v1/nodes/{name}")


async def has_account(world: Whole) -> bool:
    """Without it no pod may be created in the world's namespace."""
    status, _ = await asyncio.to_thread(
        world.plane.request, "GET", f"/api/v1/namespaces/{world.namespace}/serviceaccounts/default"
    )
    return status == 200
