"""The operator's hands: watches what it needs, and carries writes out. It makes no decision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from services.operator.config import Config
from services.operator.messages import Notice, Write
from services.operator.objects import CONFIG_MAP, STATUS, TYPES, followed
from shared.kube.event_writes import NOTE_LIMIT
from shared.kube.outcomes import Result
from shared.kube.reflector import Reflector
from shared.kube.resources import EVENT, NODE
from shared.kube.sender import Sender
from shared.kube.timing import Timing
from shared.kube.transport import JSON, MERGE_PATCH, STRATEGIC_PATCH, Transport
from shared.model.timestamps import micros_text

REPORTER = "kerf.dev/operator"
TIMING = Timing(backoff_max_s=5.0)
"""A deleted object is put back within 10 s, so no watch may wait longer than that to come back."""


class Cluster:
    def __init__(
        self, transport: Transport, config: Config, emit: Callable[[Any], None], log: Any, instance: str
    ) -> None:
        self._send = Sender(transport).send
        self._namespace, self._instance = config.namespace, instance
        self._events = 0
        self.reflectors = [
            Reflector(transport, resource, emit, log, timing=TIMING, kind=TYPES[resource.kind])
            for resource in followed(config.namespace, config.webhook)
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for reflector in self.reflectors:
                group.create_task(reflector.run(), name=f"reflector:{reflector.resource.kind}")

    async def wait_synced(self) -> None:
        for reflector in self.reflectors:
            await reflector.wait_synced()

    @property
    def problem(self) -> str:
        found = [f"{r.resource.title}: {r.problem}" for r in self.reflectors if r.problem]
        return "; ".join(found)[:500]

    async def write(self, write: Write) -> Result:
        """Carries one write out. None raises: the outcome says what happened."""
        space = write.resource.only[0] or self._namespace
        if write.method == "POST":
            return await self._send("POST", write.resource.collection(space), write.body)
        path = write.resource.path(write.name, space)
        if write.method == "DELETE":
            return await self._send("DELETE", path, write.body)
        content = STRATEGIC_PATCH if write.strategic else MERGE_PATCH
        return await self._send("PATCH", path, write.body, content_type=content)

    async def announce(self, notice: Notice, now_s: float) -> Result:
        """Writes an Event. One on a node is in namespace default and has the node's name as its uid, as the kubelet's
        Events have: `kubectl describe node` looks for both."""
        self._events += 1
        space = "default" if notice.node else self._namespace
        about = (
            {"apiVersion": "v1", "kind": NODE.kind, "name": notice.node, "uid": notice.node}
            if notice.node
            else {"apiVersion": "v1", "kind": CONFIG_MAP.kind, "name": STATUS, "namespace": space}
        )
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"kerf-operator.{self._instance}.{self._events}".lower(), "namespace": space},
            "eventTime": micros_text(now_s),
            "type": "Warning" if notice.warning else "Normal",
            "reason": notice.reason,
            "action": notice.reason,
            "note": notice.note[:NOTE_LIMIT],
            "reportingController": REPORTER,
            "reportingInstance": self._instance,
            "regarding": about,
        }
        return await self._send("POST", EVENT.collection(space), body, content_type=JSON)
