"""Which version of an API a server has: asked, because groups drop versions between releases of Kubernetes."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.formats import UNREADABLE
from shared.kube.resources import Resource, quote
from shared.kube.transport import Transport


class DiscoveryError(Exception):
    """The server's answer is no discovery document, or it did not answer 200 or 404."""


async def served(transport: Transport, resource: Resource, *, timeout_s: float = 10.0) -> Resource | None:
    """The kind in a version that the server has: its preferred one, else the first in the server's order. None: it has
    no such kind. Raises DiscoveryError, TransportError."""
    group = await _read(transport, f"/apis/{quote(resource.group)}", timeout_s)
    if group is None:
        return None
    try:
        versions = [entry["version"] for entry in group["versions"]]
        preferred = group.get("preferredVersion", {}).get("version", "")
    except (KeyError, TypeError, AttributeError) as error:
        raise DiscoveryError(f"/apis/{resource.group} lists no versions: {group}") from error
    missing = []
    for version in sorted(versions, key=lambda one: one != preferred):
        prefix = f"apis/{resource.group}/{version}"
        document = await _read(transport, f"/{prefix}", timeout_s)
        if document is None:
            missing.append(version)
        elif resource.plural in [entry.get("name") for entry in document.get("resources") or ()]:
            return resource._replace(prefix=prefix)
    if missing:
        # While API servers of two versions are behind one address, the group may be one's and its version another's.
        raise DiscoveryError(f"/apis/{resource.group} lists {', '.join(missing)}, and the server does not have it")
    return None


async def _read(transport: Transport, path: str, timeout_s: float) -> dict[str, Any] | None:
    """None: 404."""
    response = await transport.request("GET", path, timeout_s=timeout_s)
    if response.status == 404:
        return None
    text = response.body[:300].decode(errors="replace")
    if response.status != 200:
        raise DiscoveryError(f"HTTP {response.status} on {path}: {text}")
    try:
        return msgspec.json.decode(response.body, type=dict[str, Any])
    except UNREADABLE as error:
        raise DiscoveryError(f"{path} is no discovery document ({error}): {text}") from error
