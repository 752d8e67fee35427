"""The simulated cluster behind the same narrow door as the real API server: paths and bodies in, status and body out.

So the same `shared.kube.writes` serve both, and what tests prove of one holds for the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from services.simulator.cluster import SimulatedCluster
from services.simulator.rules import Reply, failure
from shared.kube.resources import BY_PATH, Resource
from shared.kube.transport import JSON, STRATEGIC_PATCH, Response


class SimTransport:
    """`changed` is called after every request, so that its owner can pass on what happened."""

    def __init__(self, cluster: SimulatedCluster, now: Callable[[], float], changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._now = now
        self._changed = changed

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        content_type: str = JSON,
        timeout_s: float = 10.0,
    ) -> Response:
        document = msgspec.json.decode(body) if body else {}
        status, answer = route(self._cluster, method, path, document, content_type=content_type, now=self._now())
        self._changed()
        return Response(status, msgspec.json.encode(answer))

    def stream(
        self, path: str, *, read_timeout_s: float
    ) -> AbstractAsyncContextManager[tuple[Response, AsyncIterator[bytes]]]:
        """Raises NotImplementedError: a simulated cluster emits its facts itself."""
        raise NotImplementedError(f"the simulated cluster has no watch at {path} (read timeout {read_timeout_s} s)")

    async def close(self) -> None:
        """Nothing to close."""


def route(
    cluster: SimulatedCluster, method: str, path: str, body: dict[str, Any], *, content_type: str, now: float
) -> Reply:
    """One request of the Kubernetes API, of those that Kerf makes."""
    found = _parse(path)
    if found is None:
        return failure(404, "NotFound", "the server could not find the requested resource")
    resource, namespace, name, sub = found
    kind = resource.kind
    match method, bool(name), sub:
        case "GET", True, "":
            held = cluster.get(kind, name, namespace)
            return (
                (200, held) if held is not None else failure(404, "NotFound", f'{resource.plural} "{name}" not found')
            )
        case "GET", False, "":
            items = [o for o in cluster.all(kind) if not namespace or o["metadata"].get("namespace") == namespace]
            return 200, {"kind": f"{kind}List", "metadata": {"resourceVersion": str(cluster.version)}, "items": items}
        case "POST", False, "":
            if namespace:
                body = {**body, "metadata": {**(body.get("metadata") or {}), "namespace": namespace}}
            return cluster.create(kind, body, now)
        case "POST", True, "binding" if kind == "Pod":
            return cluster.bind(namespace, name, body, now)
        case "POST", True, "eviction" if kind == "Pod":
            return cluster.evict(namespace, name, body, now)
        case "PATCH", True, "" | "status":
            return cluster.patch(kind, namespace, name, body, strategic=content_type == STRATEGIC_PATCH)
        case "DELETE", True, "":
            return cluster.delete(kind, namespace, name, body, now)
    return failure(405, "MethodNotAllowed", f"the server does not allow {method} on {path}")


def _parse(path: str) -> tuple[Resource, str, str, str] | None:
    """Resource, namespace, name and subresource of a path."""
    parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
    length = 2 if parts[0] == "api" else 3
    prefix, rest = "/".join(parts[:length]), parts[length:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    resource = BY_PATH.get((prefix, rest[0])) if rest else None
    if resource is None or len(rest) > 3:
        return None
    return resource, namespace, rest[1] if len(rest) > 1 else "", rest[2] if len(rest) > 2 else ""
