"""Writes Events on pods."""

from __future__ import annotations

from shared.contracts.commands import AnnounceEvent
from shared.kube import resources
from shared.kube.outcomes import Result
from shared.kube.sender import Send
from shared.model import names
from shared.model.timestamps import micros_text

NOTE_LIMIT = 1024
"""events.k8s.io/v1 refuses longer notes."""


class EventWrites:
    def __init__(self, send: Send, *, reporter: str) -> None:
        self._send = send
        self._reporter = reporter

    async def announce(self, event: AnnounceEvent, *, event_name: str, now_s: float) -> Result:
        """An Event on a pod or a node. `event_name` must be new in the namespace."""
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": event_name, "namespace": event.namespace},
            "eventTime": micros_text(now_s),
            "type": event.type,
            "reason": event.reason,
            "action": event.action or event.reason,
            "note": event.note[:NOTE_LIMIT],
            "reportingController": names.SCHEDULER_NAME,
            "reportingInstance": self._reporter,
            "regarding": {
                "apiVersion": "v1",
                "kind": event.kind,
                **({"namespace": event.namespace} if event.kind == "Pod" else {}),
                "name": event.name,
                "uid": event.uid,
            },
        }
        return await self._send("POST", resources.EVENT.collection(event.namespace), body)
