"""Writes the condition of PodGroups (scheduling.k8s.io), in the version of the API that the server has."""

from __future__ import annotations

from shared.contracts.commands import ReportPodGroup
from shared.kube.discovery import DiscoveryError, served
from shared.kube.gangs.pod_group import condition_type
from shared.kube.outcomes import Result
from shared.kube.resources import KUBERNETES_POD_GROUP, Resource
from shared.kube.sender import Send
from shared.kube.transport import STRATEGIC_PATCH, Transport, TransportError
from shared.model.objects import Gang
from shared.model.timestamps import seconds_text

MESSAGE_MOST = 32_768
"""Of a condition's message, in characters: metav1.Condition."""


class GroupWrites:
    """None raises on a failure of server or network: the outcome says it."""

    def __init__(self, transport: Transport, send: Send) -> None:
        self._transport, self._send = transport, send
        self._resource: Resource | None = None
        """As the server has it; None: not asked yet, or it may have another version by now."""

    async def report(self, order: ReportPodGroup, known: Gang, *, now_s: float) -> Result:
        """`known`: the PodGroup as last seen. Its condition keeps the time of its last change of status."""
        try:
            resource = self._resource = self._resource or await served(self._transport, KUBERNETES_POD_GROUP)
        except (DiscoveryError, TransportError) as error:
            return Result("throttled", f"the version of PodGroups could not be asked: {error}")
        if resource is None:
            return Result("gone", "the API server has no PodGroups")
        status = "True" if order.scheduled else "False"
        condition = {
            "type": condition_type(resource.version),
            "status": status,
            "reason": order.reason,
            "message": order.message[:MESSAGE_MOST],
            "observedGeneration": known.generation,
        }
        if known.scheduled is None or known.scheduled.status != status:
            condition["lastTransitionTime"] = seconds_text(now_s)
        body = {"metadata": {"uid": order.uid}, "status": {"conditions": [condition]}}
        path = resource.path(order.name, order.namespace, sub="status")
        result = await self._send("PATCH", path, body, content_type=STRATEGIC_PATCH)
        if result.outcome == "gone":
            self._resource = None
        return result
