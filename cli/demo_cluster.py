"""The demo's cluster: simulated in memory, or a real API server. Both take objects and show which pods were bound."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from cli import openb
from cli.output import Failure
from cli.stack import Stack
from cli.up import apply, node_object
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.envelope import unwrap
from shared.contracts.events import PodBound

_BATCH = 10


class Cluster:
    """The simulated one."""

    name = "a simulated cluster"
    kubeconfig = ""

    async def begin(self, made: Stack, nodes: list[openb.TraceNode], namespace: str) -> None:
        """Creates the namespace and the nodes, and waits until placement has them synced."""
        objects: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}]
        await self.put(made, objects + [node_object({"name": n.name, **openb.node_amounts(n)}) for n in nodes])

    async def put(self, made: Stack, objects: list[dict[str, Any]]) -> None:
        answer = await apply(made.bus, objects)
        if answer.refusals:
            raise Failure(f"the cluster refused: {answer.refusals[0]}")

    async def create(self, made: Stack, manifests: list[dict[str, Any]]) -> AsyncIterator[str]:
        """Names as they are created, in order."""
        for start in range(0, len(manifests), _BATCH):
            batch = manifests[start : start + _BATCH]
            await self.put(made, batch)
            for manifest in batch:
                yield manifest["metadata"]["name"]

    async def watch_bound(self, made: Stack, bound: dict[str, float]) -> None:
        """Notes when the public stream says that a pod is bound."""

        async def seen(incoming: Incoming) -> None:
            _, event = unwrap(incoming.payload)
            if isinstance(event, PodBound):
                bound.setdefault(event.name, time.monotonic())

        await made.bus.subscribe(f"{subjects.VERSION}.event.pod.bound.ns.*", seen)
